"""The DuckDB instances of a process: one is kept from request to request, as long as nothing stays in it.

DuckDB registers some thousand functions when an instance begins, which takes longer than a small statement.
A request sees only what it has shown itself: it has a connection of its own, whose settings nobody can
change, and all that it creates is in a transaction that is rolled back at its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import duckdb

from tidelock.replica_agent.sql.mutation import MergeRows
from tidelock.replica_agent.sql.request import ChangesRequest, Request, SqlConfig, SqlRequest

_OF_ALL: Mapping[str, Any] = MappingProxyType({})
#: Requests that load or collect rows in tables of their own need no order, and spill sooner without one.
_OF_TABLES: Mapping[str, Any] = MappingProxyType({"preserve_insertion_order": False})
#: Both optimizers would let a merge build the hash table from the side of the table.
_OF_MERGES: Mapping[str, Any] = MappingProxyType(
    {**_OF_TABLES, "disabled_optimizers": "join_order,build_side_probe_side"}
)
#: Returns a row if a request has left something that belongs to the instance: a SELECT can add to these.
_LEFT = (
    "SELECT 1 FROM duckdb_external_resources() UNION ALL SELECT 1 FROM duckdb_external_resource_types() "
    "UNION ALL SELECT 1 FROM duckdb_logs()"
)


class Engine:
    """The instances of one process.

    Args:
        config: Configuration of the process.
    """

    def __init__(self, config: SqlConfig) -> None:
        self.config = config
        self._kept: duckdb.DuckDBPyConnection | None = None

    @contextlib.contextmanager
    def connection(self, request: Request) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open the connection of a request, whose settings cannot be changed.

        A request that makes tables has an instance of its own: within a transaction the space of a table that
        was replaced would not come free, and merges need other settings.
        """
        opened: AbstractContextManager[duckdb.DuckDBPyConnection]
        if isinstance(request, ChangesRequest):
            opened = contextlib.closing(_begun(self.config, _OF_TABLES))
        elif not isinstance(request, SqlRequest) and isinstance(request.action, MergeRows):
            opened = contextlib.closing(_begun(self.config, _OF_MERGES))
        else:
            opened = self._of_kept()
        with opened as connection:
            yield connection

    def close(self) -> None:
        """End the instance that is kept."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    @contextlib.contextmanager
    def _of_kept(self) -> Iterator[duckdb.DuckDBPyConnection]:
        if self._kept is None:
            self._kept = _begun(self.config)
        connection = self._kept.cursor()
        try:
            connection.execute("BEGIN")
            yield connection
        finally:
            if not self._ended(connection):
                self.close()

    def _ended(self, connection: duckdb.DuckDBPyConnection) -> bool:
        """End a connection of the kept instance; returns whether nothing of its request has stayed."""
        with contextlib.closing(connection), contextlib.suppress(duckdb.Error):
            connection.execute("ROLLBACK")
            return connection.execute(_LEFT).fetchone() is None
        return False  # the engine is broken


def _begun(
    config: SqlConfig, settings: Mapping[str, Any] = MappingProxyType({})
) -> duckdb.DuckDBPyConnection:
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
