"""The calls of a Hive metastore, by their names in its protocol.

Nothing is kept for a connection: Spark has one for all sessions of an application, and makes another one
whenever it likes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from tidelock.errors import TransactionClosedError, UnknownTagError
from tidelock.job_options import MARKED, OPTIONS
from tidelock.metastore import described
from tidelock.metastore.changes import CHANGES, Changes, folder_of
from tidelock.metastore.filters import filter_of
from tidelock.metastore.idl import hive
from tidelock.metastore.names import NOW, SYSTEM, TRANSACTION, DatabaseName, matching, read_name, suffix_of
from tidelock.metastore.snapshots import Partition, Snapshots
from tidelock.partition_paths import texts_of
from tidelock.read_route import READER_OPTIONS
from tidelock.wire.tables import TableInfo

#: The columns of the view of the newest CSN.
_NOW: Final = [
    {"name": "csn", "type": "bigint", "nullable": False},
    {"name": "suffix", "type": "string", "nullable": False},
]
#: Options of tables that are written to. They are never read; an attempt has to fail, whatever the session
#: says.
_WRITTEN: Final = {**READER_OPTIONS, **OPTIONS, **MARKED}
_TABLES: Final = "SELECT table_name FROM system.tables WHERE namespace = ? ORDER BY table_name"


class Calls:
    """The calls of one connection; those that change something are passed on to `Changes`.

    Args:
        snapshots: What is read.
        changes: The calls that change something; None: they are refused.
        plain: Whether names without a CSN are answered; otherwise they are refused.
        by_catalog: As of `described.table`.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        changes: Changes | None = None,
        *,
        plain: bool = True,
        by_catalog: bool = False,
    ) -> None:
        self._snapshots = snapshots
        self._changes = changes
        self._plain = plain
        self._by_catalog = by_catalog

    def connection(self) -> Calls:
        """Return the calls of another connection."""
        return Calls(
            self._snapshots, copy.copy(self._changes), plain=self._plain, by_catalog=self._by_catalog
        )

    def __getattr__(self, call: str) -> Callable[..., Any]:
        if call not in CHANGES:
            raise AttributeError(call)
        found: Callable[..., Any] = getattr(self._required(call), call)
        return found

    # -- the session -----------------------------------------------------------------------------------------

    def set_ugi(self, user_name: str, group_names: list[str] | None) -> list[str]:
        """Take the user of the client's operating system, who has its transactions; it proves nothing."""
        if self._changes is not None:
            self._changes.user = user_name
        return group_names or []

    def get_config_value(self, name: str, default: str) -> str:
        """Return the client's default: there is no configuration of Hive."""
        return default

    def shutdown(self) -> None:
        """Take the farewell of a client."""

    # -- databases -------------------------------------------------------------------------------------------

    def get_all_databases(self) -> list[str]:
        """Return the namespaces. Those at CSNs are found when they are asked for: there is no end of them."""
        return sorted({*self._snapshots.namespaces(self._snapshots.newest()), SYSTEM})

    def get_databases(self, pattern: str) -> list[str]:
        """Return the namespaces that a pattern means."""
        return matching(self.get_all_databases(), pattern)

    def get_database(self, name: str) -> Any:
        """Return a namespace, at a CSN if its name says so."""
        if name == SYSTEM:
            return described.database(name, "file:/dev/null", {}, "what Tidelock tells of itself")
        if (asked := self._read(name)).label is not None:
            state, about = self._required("get_database").state(asked), f"transaction {asked.label}"
            return described.database(name, folder_of(asked), state, about)
        asked, csn = self._resolved(name)
        if asked.namespace not in self._snapshots.namespaces(csn):
            raise hive.NoSuchObjectException(f"there is no namespace {asked.namespace} at CSN {csn}")
        about = f"namespace {asked.namespace} of Tidelock at CSN {csn}"
        return described.database(name, folder_of(asked), {"csn": str(csn)}, about)

    # -- tables ----------------------------------------------------------------------------------------------

    def get_all_tables(self, database: str) -> list[str]:
        """Return the names of the tables of a namespace.

        A transaction has none: Hive's client would drop them one by one before it.
        """
        if database == SYSTEM:
            return [NOW]
        if self._read(database).label is not None:
            return []
        asked, csn = self._resolved(database)
        names = (table.rpartition(".") for table in self._snapshots.tables(csn))
        return sorted(name for namespace, _, name in names if namespace == asked.namespace)

    def get_tables(self, database: str, pattern: str) -> list[str]:
        """Return the names of the tables that a pattern means, also of those that a transaction sees."""
        asked = self._read(database)
        if asked.label is None:
            return matching(self.get_all_tables(database), pattern)
        tx = self._required("get_tables").transaction(asked)
        try:
            rows = tx.sql(_TABLES, [asked.namespace]).to_pylist()
        except TransactionClosedError:
            return []  # only a rollback is left, which looks for tables first
        return matching([row["table_name"] for row in rows], pattern)

    def get_tables_by_type(self, database: str, pattern: str, kind: str) -> list[str]:
        """Return the names of the tables, or views, that a pattern means."""
        return self.get_tables(database, pattern) if kind in {"", _kind(database)} else []

    def get_table_meta(self, databases: str, tables: str, kinds: list[str] | None) -> list[Any]:
        """Return names and kinds of tables."""
        return [
            hive.TableMeta(database, table, _kind(database), None)
            for database in self.get_databases(databases)
            if not kinds or _kind(database) in kinds
            for table in self.get_tables(database, tables)
        ]

    def get_table(self, database: str, name: str) -> Any:
        """Return a table at a CSN, or the view of a table."""
        database = database.lower()
        if (database, name.lower()) == (SYSTEM, NOW):
            csn = self._snapshots.newest()
            text = f"SELECT {csn}L AS csn, '{suffix_of(csn)}' AS suffix"
            return described.view(database, NOW, _NOW, text)
        if (asked := self._read(database)).label is not None:
            return self._written(database, asked, name.lower())
        asked, csn, table = self._found(database, name)
        namespace, _, short = table.name.rpartition(".")
        if not asked.is_exact:
            return described.view_of(database, short, table, namespace, csn)
        to_replicas = self._snapshots.route()
        location = to_replicas.folder(csn, namespace, short)
        options = to_replicas.options
        return described.table(database, short, table, location, options, by_catalog=self._by_catalog)

    def _written(self, database: str, asked: DatabaseName, name: str) -> Any:
        """Return a table of a transaction."""
        full = f"{asked.namespace}.{name}"
        changes = self._required("get_table")
        definition, location = changes.transaction(asked).definition(full), changes.path(asked, full)
        return described.table(database, name, definition, location, _WRITTEN)

    def get_table_req(self, request: Any) -> Any:
        """As `get_table`."""
        return hive.GetTableResult(self.get_table(request.dbName, request.tblName))

    def get_table_objects_by_name(self, database: str, names: list[str]) -> list[Any]:
        """Return those of the tables that exist."""
        known = set(self.get_all_tables(database))
        return [self.get_table(database, name) for name in names if name.lower() in known]

    def get_table_objects_by_name_req(self, request: Any) -> Any:
        """As `get_table_objects_by_name`."""
        return hive.GetTablesResult(self.get_table_objects_by_name(request.dbName, request.tblNames))

    # -- partitions ------------------------------------------------------------------------------------------

    def get_partitions(self, database: str, name: str, most: int) -> list[Any]:
        """Return all partitions of a table."""
        return self._partitions(database, name, lambda _: True)

    def get_partitions_with_auth(
        self, database: str, name: str, most: int, user: str, groups: list[str]
    ) -> list[Any]:
        """As `get_partitions`."""
        return self.get_partitions(database, name, most)

    def get_partitions_by_filter(self, database: str, name: str, text: str, most: int) -> list[Any]:
        """Return at least the partitions for which a condition holds; Spark checks it again."""
        _, _, table = self._found(database, name)
        types = {one["name"]: one["type"] for one in table["columns"] if one["name"] in table["partition_by"]}
        holds = filter_of(text, types)
        return self._partitions(database, name, lambda one: holds(texts_of(one.path)))

    def get_partitions_ps_with_auth(
        self, database: str, name: str, values: list[str], most: int, user: str, groups: list[str]
    ) -> list[Any]:
        """Return the partitions whose first values are these; an empty text stands for any value."""
        return self._partitions(database, name, _begins(values))

    def get_partitions_by_names(self, database: str, name: str, names: list[str]) -> list[Any]:
        """Return the partitions that have these paths."""
        wanted = set(names)
        return self._partitions(database, name, lambda one: one.path in wanted)

    def get_partitions_by_expr(self, request: Any) -> Any:
        """Refuse a filter that is a serialized object of Java."""
        raise hive.MetaException(
            "a filter that is a serialized object of Java cannot be read; use the Hive client that Spark "
            "brings with it (spark.sql.hive.metastore.jars=builtin)"
        )

    def get_partition(self, database: str, name: str, values: list[str]) -> Any:
        """Return one partition."""
        for found in self._partitions(database, name, lambda one: described.values_of(one) == values):
            return found
        raise hive.NoSuchObjectException(f"{database}.{name} has no partition {values}")

    def get_partition_with_auth(
        self, database: str, name: str, values: list[str], user: str, groups: list[str]
    ) -> Any:
        """As `get_partition`."""
        return self.get_partition(database, name, values)

    def get_partition_names(self, database: str, name: str, most: int) -> list[str]:
        """Return the paths of all partitions."""
        return self.get_partition_names_ps(database, name, [], most)

    def get_partition_names_ps(self, database: str, name: str, values: list[str], most: int) -> list[str]:
        """Return the paths of the partitions whose first values are these."""
        _, csn, table = self._found(database, name)
        begins = _begins(values)
        return [one.path for one in self._snapshots.partitions(csn, table.name) if begins(one)]

    # -- functions: there are none ---------------------------------------------------------------------------

    def get_all_functions(self) -> Any:
        """Return no function."""
        return hive.GetAllFunctionsResponse([])

    def get_functions(self, database: str, pattern: str) -> list[str]:
        """Return no function."""
        return []

    def get_function(self, database: str, name: str) -> Any:
        """Refuse a function by name."""
        raise hive.NoSuchObjectException(f"there is no function {database}.{name}")

    # -- what names mean -------------------------------------------------------------------------------------

    def _read(self, database: str) -> DatabaseName:
        """Return what the name of a database says; a namespace may have the name of a transaction."""
        asked = read_name(database)
        if asked.label is None or database.lower().startswith(TRANSACTION):
            return asked
        known = self._snapshots.namespaces(self._snapshots.newest())
        return DatabaseName(database.lower(), None) if database.lower() in known else asked

    def _required(self, call: str) -> Changes:
        if self._changes is None:
            raise hive.MetaException(
                f"tables of Tidelock are only read by name here, by --writes off ({call}); write with "
                "tidelock.spark.write or df.write.format('tidelock'), and change definitions with "
                "tidelock.connect()"
            )
        return self._changes

    def _resolved(self, database: str) -> tuple[DatabaseName, int]:
        """Return what the name of a database means, and the CSN at which it is read."""
        asked = self._read(database)
        if asked.label is not None:
            raise hive.MetaException(
                f"{database} is a transaction, whose tables are only written to; read the newest rows as "
                f"{asked.namespace}, or a snapshot as {asked.namespace}_at_<csn>"
            )
        if isinstance(asked.at, int):
            return asked, asked.at
        if isinstance(asked.at, str):
            if (tagged := self._snapshots.tag(asked.at)) is None:
                raise UnknownTagError(f"there is no tag {asked.at}; tags() lists them", tag=asked.at)
            return asked, tagged
        newest = self._snapshots.newest()
        if not self._plain:
            raise hive.MetaException(
                f"names without a CSN are refused here (--plain refuse), since two of them in one query may "
                f"be of two commits: USE {database}{suffix_of(newest)}"
            )
        return asked, newest

    def _found(self, database: str, name: str) -> tuple[DatabaseName, int, TableInfo]:
        asked, csn = self._resolved(database)
        table = self._snapshots.tables(csn).get(f"{asked.namespace}.{name.lower()}")
        if table is None:
            raise hive.NoSuchObjectException(f"there is no table {asked.namespace}.{name} at CSN {csn}")
        return asked, csn, table

    def _partitions(self, database: str, name: str, wanted: Callable[[Partition], bool]) -> list[Any]:
        _, csn, table = self._found(database, name)
        namespace, _, short = table.name.rpartition(".")
        location = self._snapshots.route().folder(csn, namespace, short)
        found = filter(wanted, self._snapshots.partitions(csn, table.name))
        return described.partitions(database, short, location, found)


def _kind(database: str) -> str:
    return described.TABLE if read_name(database).is_fixed else described.VIEW


def _begins(values: list[str]) -> Callable[[Partition], bool]:
    """Return whether a partition's first values are these; an empty text stands for any value."""
    return lambda one: all(
        wanted in {"", found} for wanted, found in zip(values, described.values_of(one), strict=False)
    )
