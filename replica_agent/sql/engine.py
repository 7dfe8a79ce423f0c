"""The DuckDB instance of a process, which is kept from request to request as long as nothing stays in it.

DuckDB registers some thousand functions when an instance begins, which takes longer than a small statement.
A request sees only what it has shown itself: it has a connection of its own, whose settings nobody can
change, and all that it has created is dropped at its end.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import duckdb

from tidelock.replica_agent.sql.mutation import MergeRows, MutationRequest
from tidelock.replica_agent.sql.request import ChangesRequest, Request, SqlConfig, quote


class _Work(enum.Enum):
    """The kinds of requests, by the settings that they need."""

    ROWS = enum.auto()
    CHANGES = enum.auto()
    MERGE = enum.auto()


#: Requests that load or collect rows in tables of their own need no order, and spill sooner without one.
_UNORDERED = {"preserve_insertion_order": False}
#: Both optimizers would let a merge build the hash table from the side of the table.
_NO_SWAPS = {"disabled_optimizers": "join_order,build_side_probe_side"}
_SETTINGS: Mapping[_Work, Mapping[str, Any]] = MappingProxyType(
    {_Work.ROWS: {}, _Work.CHANGES: _UNORDERED, _Work.MERGE: {**_UNORDERED, **_NO_SWAPS}}
)
#: Lists what a request has left in its instance. The views of `main` and whole schemas can be dropped; with
#: the others, which a SELECT can add to, the instance has to end. Temporary tables end with their connection.
_LEFT = """
    SELECT 'VIEW', view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'
    UNION ALL SELECT 'SCHEMA', schema_name FROM duckdb_schemas() WHERE NOT internal
    UNION ALL SELECT 'resource', name FROM duckdb_external_resources()
    UNION ALL SELECT 'type', name FROM duckdb_external_resource_types()
    UNION ALL SELECT 'log', '' FROM duckdb_logs()
"""
_DROPPED = frozenset({"VIEW", "SCHEMA"})


class Engine:
    """The instance of one process. Work that needs other settings gets an instance of its own in its place.

    An instance keeps memory for its next request, and all of a process have one limit together: a second one
    beside it would fail where it stands alone.

    Args:
        config: Configuration of the process.
    """

    def __init__(self, config: SqlConfig) -> None:
        self.config = config
        self._kept: tuple[_Work, duckdb.DuckDBPyConnection] | None = None

    @contextlib.contextmanager
    def connection(self, request: Request) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open the connection of a request, whose settings cannot be changed."""
        kept = self._instance(_work(request))
        try:
            with contextlib.closing(kept.cursor()) as connection:
                yield connection
        finally:
            if not _cleared(kept):
                self.close()

    def _instance(self, work: _Work) -> duckdb.DuckDBPyConnection:
        if self._kept is not None and self._kept[0] is not work:
            self.close()
        if self._kept is None:
            self._kept = work, _begun(self.config, _SETTINGS[work])
        return self._kept[1]

    def close(self) -> None:
        """End the instance, if there is one."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept[1].close()


def _work(request: Request) -> _Work:
    if isinstance(request, ChangesRequest):
        return _Work.CHANGES
    merges = isinstance(request, MutationRequest) and isinstance(request.action, MergeRows)
    return _Work.MERGE if merges else _Work.ROWS


def _cleared(instance: duckdb.DuckDBPyConnection) -> bool:
    """Drop what a request has left; return whether the instance is as it was before."""
    try:
        left = instance.execute(_LEFT).fetchall()
        for kind, name in left:
            if kind in _DROPPED:
                instance.execute(f"DROP {kind} {quote(name)} CASCADE")
    except duckdb.Error:
        return False  # it is broken
    return all(kind in _DROPPED for kind, _ in left)


def _begun(config: SqlConfig, settings: Mapping[str, Any]) -> duckdb.DuckDBPyConnection:
    """Begin an instance whose settings are locked, for all of its connections."""
    connection = duckdb.connect(":memory:")
    for name, value in {
        "memory_limit": f"{config.engine_bytes}B",
        "threads": config.threads,
        "temp_directory": config.temp_dir,
        "max_temp_directory_size": f"{config.temp_bytes}B",
        "TimeZone": "UTC",
        "python_enable_replacements": False,
        "autoload_known_extensions": False,
        "autoinstall_known_extensions": False,
        "allow_community_extensions": False,
        **settings,
        # It forbids to set the temporary folder.
        "enable_external_access": False,
        "lock_configuration": True,
    }.items():
        connection.execute(f"SET GLOBAL {name} = $1", [value])
    return connection
