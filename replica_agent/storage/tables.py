"""The tables at a CSN: names, versions and decoded definitions, in memory.

Every insert needs both. To read them from the catalog costs a commit several per cent of its processor time:
after each write of the catalog a reader begins with an empty cache of pages. So the versions of a table stay
here until a record that defines it is applied. All of this runs in the thread of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.core.model import DefineTable
from tidelock.errors import UnknownTableError
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.tables.definitions import After, Last
from tidelock.replica_agent.tables.names import no_table
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replication.core.model import ResolvedRecord
from tidelock.wire.ids import TableName

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

#: Definitions that are kept decoded, and tables whose versions are kept. A definition never changes under
#: its (name, version).
_KEPT = 1000


@dataclass(slots=True, eq=False, repr=False)
class Tables:
    """The tables that the catalog of this replica knows."""

    reader: CatalogReader
    _versions: dict[TableId, list[tuple[Csn, int | None]]] = field(default_factory=dict, init=False)
    _bearers: dict[TableName, list[tuple[Csn, TableId | None]]] = field(default_factory=dict, init=False)
    _schemas: dict[tuple[TableId, int], TableSchema] = field(default_factory=dict, init=False)

    def applied(self, records: Sequence[ResolvedRecord]) -> None:
        """Forget the versions of tables that the catalog has just got new definitions of."""
        for record in records:
            for tid in record.tids:
                for entry in tid.entries:
                    if isinstance(entry, DefineTable):
                        self._versions.pop(entry.table, None)
                        self._bearers.clear()  # the former name and the new one; it is rare

    def version(self, table: TableId, at: Csn) -> int | None:
        """Return the version of a table's definition at a CSN that is applied here; None without a table."""
        return _at(self._kept(self._versions, table, self.reader.versions), at)

    def version_since(self, table: TableId, since: Csn, at: Csn) -> int | None:
        """Return the version of a table at a CSN that is applied here, if it was there all the time.

        None if it was dropped above ``since``, although it may have been brought back.
        """
        history = self._kept(self._versions, table, self.reader.versions)
        dropped = any(version is None and since < csn <= at for csn, version in history)
        return None if dropped else _at(history, at)

    def bearer(self, name: TableName, at: Csn) -> TableId | None:
        """Return the table that has a name at a CSN that is applied here, or None."""
        return _at(self._kept(self._bearers, name, self.reader.bearers), at)

    def lost(self, name: TableName, table: TableId, at: Csn) -> Csn | None:
        """Return the CSN at which a table has lost a name last, up to a CSN; None if it has it there."""
        lost: Csn | None = None
        for since, bearer in self._kept(self._bearers, name, self.reader.bearers):
            if since <= at:
                if bearer == table:
                    return lost
                lost = since
        return None

    def find(self, name: TableName, at: Csn) -> TableId:
        """Return the table that has a name at a CSN that is applied here; UnknownTableError without one."""
        found = self.bearer(name, at)
        if found is None:
            raise no_table(name, at, self.reader.table_names(at).values())
        return found

    def schema(self, table: TableId, at: Csn) -> tuple[int, TableSchema]:
        """Return version and schema of a table at a CSN.

        Raises:
            UnknownTableError: The table does not exist at ``at``.
        """
        version = self.version(table, at)
        if version is None:
            raise no_table(table, at, self.reader.table_names(at).values())
        found = self._schemas.get((table, version))
        if found is None:
            row = self.reader.table(table, at)
            assert row is not None, "it has a version there"
            if len(self._schemas) >= _KEPT:
                self._schemas.clear()
            found = TableSchema.from_definition(table, row.definition)
            self._schemas[table, version] = found
        return version, found

    def changes(self, table: TableId, after: Csn, until: Csn) -> list[tuple[Csn, TableSchema]]:
        """Return the schemas that a table has got above a CSN and up to another, each with its CSN."""
        found = self._kept(self._versions, table, self.reader.versions)
        csns = sorted(csn for csn, version in found if version is not None and after < csn <= until)
        return [(csn, self.schema(table, csn)[1]) for csn in csns]

    def named(self, name: TableName, at: Csn) -> tuple[int, TableSchema]:
        """Return version and schema of the table that has a name at a CSN; UnknownTableError as `find`."""
        return self.schema(self.find(name, at), at)

    def seen(self, at: Csn, made: Sequence[DefineTable] = ()) -> SeenTables:
        """Return the tables at a CSN that is applied here, after definitions that are not committed."""
        return SeenTables(self, at, made)

    @staticmethod
    def _kept(cache: dict[K, list[V]], key: K, read: Callable[[K], list[V]]) -> list[V]:
        found = cache.get(key)
        if found is None:
            if len(cache) >= _KEPT:
                cache.clear()
            found = cache[key] = read(key)
        return found


class SeenTables:
    """The tables as a transaction sees them: those of a CSN, after the definitions of the transaction.

    Args:
        tables: The tables that are applied here.
        at: The CSN; also an attribute.
        made: The definitions, in their order.
    """

    def __init__(self, tables: Tables, at: Csn, made: Sequence[DefineTable]) -> None:
        self.at = at
        self._tables = tables
        self._made = {one.table: one for one in made}
        self._after = After(_At(tables, at), made)

    def find(self, name: TableName) -> TableId:
        """Return the table that has a name; UnknownTableError without one."""
        found = self._after.bearer(name)
        if found is None:
            raise self._after.missing(name)
        return found

    def schema(self, table: TableId) -> tuple[int, TableSchema]:
        """Return version and schema of a table; UnknownTableError if it does not exist."""
        if (made := self._made.get(table)) is None:
            return self._tables.schema(table, self.at)
        if made.drops:
            raise self._after.missing(TableName(made.definition["name"]))
        return made.version, TableSchema.from_definition(table, made.definition)

    def named(self, name: TableName) -> tuple[int, TableSchema]:
        """Return version and schema of the table that has a name; UnknownTableError as `find`."""
        return self.schema(self.find(name))

    # -- the tables as `definitions` takes them --------------------------------------------------------------

    def bearer(self, name: TableName) -> TableId | None:
        """Return the table that has a name, or None."""
        return self._after.bearer(name)

    def last(self, table: TableId) -> Last | None:
        """Return the last definition of a table, of a dropped one too; None if the id was never given."""
        return self._after.last(table)

    def missing(self, name: TableName) -> UnknownTableError:
        """Return the error about a name that no table has."""
        return self._after.missing(name)

    def names(self) -> Mapping[TableId, TableName]:
        """Return the names of all tables, without namespaces."""
        return self._after.names()


@dataclass(frozen=True, slots=True)
class _At:
    """The tables at one CSN, as `definitions` takes them."""

    tables: Tables
    at: Csn

    def bearer(self, name: TableName) -> TableId | None:
        return self.tables.bearer(name, self.at)

    def last(self, table: TableId) -> Last | None:
        """Return the definition of a table there; of one that does not exist there the last one of all.

        An id is given once, so one that was given after the CSN is no free id.
        """
        if self.tables.version(table, self.at) is not None:
            return Last(*self.tables.schema(table, self.at))
        found = self.tables.reader.last_definition(table)
        return None if found is None else Last(found[0], TableSchema.from_definition(table, found[1]))

    def missing(self, name: TableName) -> UnknownTableError:
        return no_table(name, self.at, self.tables.reader.table_names(self.at).values())

    def names(self) -> Mapping[TableId, TableName]:
        return self.tables.reader.table_names(self.at)


def _at(history: Sequence[tuple[Csn, T | None]], at: Csn) -> T | None:
    """Return what holds at a CSN, of a history whose newest entry comes first."""
    return next((value for since, value in history if since <= at), None)
