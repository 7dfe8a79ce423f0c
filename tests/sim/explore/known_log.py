"""A log that is whole from the beginning, and the catalogs that the product makes of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from tests.sim.explore.catalogs import Catalogs
from tests.sim.explore.search import Broken
from tests.sim.explore.world import NAMES
from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, TableId, Tid
from tidelock.csnlog.core.model import AddPart, ChangeTable, DefineTable, Entry, RemovePart
from tidelock.replica_agent.storage import catalog_garbage as garbage
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog_garbage import Collectables
from tidelock.replication.core.model import Location, PartMeta

FIRST_TABLE, OTHER_TABLE = TableId("d.first"), TableId("d.other")
_TABLES: Final = (FIRST_TABLE, OTHER_TABLE)


class Shown(NamedTuple):
    """The tables that a reader sees at a CSN, and the parts of each."""

    tables: frozenset[TableId]
    parts: frozenset[tuple[TableId, str]]

    def of(self, table: TableId) -> tuple[bool, frozenset[str]]:
        """Whether a table is there, and its parts."""
        return table in self.tables, frozenset(part for owner, part in self.parts if owner == table)


class KnownLog:
    """The log, and its catalogs, by their numbers.

    CSN 1 defines two tables. CSN 2 adds part A to the first. CSN 3 adds B, and removes A or drops its table.
    More records may add parts.

    Args:
        drops: CSN 3 drops the first table, and B is in the other one.
        properties: The properties of the first table.
        more: The parts that the records from CSN 4 on add.
    """

    def __init__(self, *, drops: bool, properties: Mapping[str, str] | None = None, more: str = "") -> None:
        first = {"name": FIRST_TABLE, "properties": dict(properties or {})}
        later = OTHER_TABLE if drops else FIRST_TABLE
        removal: Entry = RemovePart(FIRST_TABLE, PartId("A"))
        if drops:
            removal = ChangeTable(FIRST_TABLE, 1, first | {"dropped": True})
        self._records: list[Sequence[Entry]] = [
            [
                DefineTable(FIRST_TABLE, 0, first),
                DefineTable(OTHER_TABLE, 0, {"name": OTHER_TABLE, "properties": {}}),
            ],
            [_adds("A", FIRST_TABLE)],
            [_adds("B", later), removal],
            *([_adds(part, later)] for part in more),
        ]
        self.last = Csn(len(self._records))
        self.catalogs = Catalogs()
        self._right = [self._seen(csn) for csn in range(self.last + 1)]

    def added(self, csn: Csn) -> frozenset[PartId]:
        """Return the parts that a record adds; a record that does not exist adds none."""
        return frozenset(self._parts(range(csn, csn + 1)))

    def added_until(self, csn: Csn) -> frozenset[PartId]:
        """Return the parts that all records up to a CSN add."""
        return frozenset(self._parts(range(1, csn + 1)))

    def right(self, csn: Csn) -> Shown:
        """Return what a reader has to see at a CSN."""
        return self._right[csn]

    # -- what is done with a catalog; each returns the catalog afterwards ------------------------------------

    def until(self, csn: Csn, catalog: int = 0) -> int:
        """Make all records up to a CSN visible in a catalog."""
        for following in map(Csn, range(1, csn + 1)):
            catalog = self.applied(self.staged(catalog, self.added(following)), following)
        return catalog

    def staged(self, catalog: int, parts: frozenset[PartId]) -> int:
        """Put parts on the disk of a catalog."""
        return self.catalogs.after(catalog, ("stage", parts), partial(self._stage, parts))

    def applied(self, catalog: int, csn: Csn) -> int:
        """Make a record visible in a catalog that holds its parts."""
        return self.catalogs.after(catalog, ("apply", csn), partial(self._apply, csn))

    def noted(self, catalog: int, horizon: Csn, kept: Mapping[TableId, Csn] | None = None) -> int:
        """Note the bounds that are seen now."""
        bounds = dict(kept or {})
        return self.catalogs.after(
            catalog,
            ("note", horizon, tuple(bounds.items())),
            lambda db: garbage.note_horizon(db, horizon, CSN_NONE, bounds),
        )

    def deleted(self, catalog: int, part: PartId) -> int:
        """Forget a part that may go."""
        return self.catalogs.after(catalog, ("delete", part), lambda db: garbage.collect_parts(db, [part]))

    def forgotten(self, catalog: int) -> int:
        """Forget the definitions that may go."""
        return self.catalogs.after(catalog, "forget", garbage.collect_tables)

    # -- what a catalog says ---------------------------------------------------------------------------------

    def held(self, catalog: int) -> frozenset[PartId]:
        """Return the parts whose bytes are on its disk."""
        every = self.added_until(self.last)
        return self.catalogs.told(catalog, "held", lambda read: frozenset(read.held(every)))

    def removed(self, catalog: int) -> tuple[PartId, ...]:
        """Return the parts that it may forget."""
        return self.catalogs.told(
            catalog, "removed", lambda read: tuple(one.part for one in read.removed_parts(None, 10))
        )

    def keeps(self, catalog: int, csn: Csn, table: TableId) -> bool:
        """Return whether it lets a table be read at a CSN."""
        return self.catalogs.told(catalog, ("keeps", csn, table), lambda read: read.keeps(csn, table))

    def shown(self, catalog: int, csn: Csn) -> Shown:
        """Return what it shows at a CSN."""

        def question(read: Collectables) -> Shown:
            parts = {(table, str(row.part)) for table in _TABLES for row in read.parts(table, csn)}
            return Shown(frozenset(row.id for row in read.tables(csn)), frozenset(parts))

        return self.catalogs.told(catalog, ("shown", csn), question)

    def dishonest(self, catalog: int, applied: Csn, name: str) -> Broken | None:
        """Return how a catalog breaks I6: what it shows at a CSN that it does not refuse is not the log."""
        for csn in map(Csn, range(1, applied + 1)):
            right, seen = self.right(csn), self.shown(catalog, csn)
            for table in _TABLES:
                if self.keeps(catalog, csn, table) and seen.of(table) != right.of(table):
                    found = f"{seen.of(table)} instead of {right.of(table)}"
                    return Broken("I6 SNAPSHOT", f"{name} shows {found} for {table} at CSN {csn}")
        return None

    def _stage(self, parts: Collection[str], db: sqlite3.Connection) -> None:
        found = self._parts(range(1, self.last + 1))
        staged = [
            jobs.StagedPart(
                PartMeta(one.part, one.table, one.path, one.rows, one.length, one.checksum),
                Location(f"parts/{one.part}.parquet", 0, 1, b"\0" * 8),
                _tid(csn),
            )
            for part, (csn, one) in found.items()
            if part in parts
        ]
        jobs.add_staged(db, staged, [])

    def _apply(self, csn: Csn, db: sqlite3.Connection) -> None:
        entries = self._records[csn - 1]
        forms: dict[tuple[str, int], jobs.TableForms] = {
            (one.table, one.version): jobs.TableForms(one.definition, b"", b"")
            for one in entries
            if isinstance(one, DefineTable)
        }
        done = jobs.AppliedTid(str(_tid(csn)), entries, None, True)
        jobs.apply(db, [jobs.AppliedRecord(csn, 1000 * csn, [done], forms)])

    def _parts(self, csns: range) -> dict[PartId, tuple[Csn, AddPart]]:
        return {
            entry.part: (Csn(csn), entry)
            for csn in csns
            if csn <= self.last
            for entry in self._records[csn - 1]
            if isinstance(entry, AddPart)
        }

    def _seen(self, csn: int) -> Shown:
        tables: set[TableId] = set()
        parts: set[tuple[TableId, str]] = set()
        for entry in (entry for record in self._records[:csn] for entry in record):
            match entry:
                case AddPart():
                    parts.add((entry.table, entry.part))
                case RemovePart():
                    parts.remove((entry.table, entry.part))
                case DefineTable() if entry.drops:
                    tables.remove(entry.table)
                    parts = {one for one in parts if one[0] != entry.table}
                case DefineTable():
                    tables.add(entry.table)
        return Shown(frozenset(tables), frozenset(parts))


def _adds(part: str, table: TableId) -> AddPart:
    return AddPart(table, PartId(part), "", 1, 1, part)


def _tid(csn: Csn) -> Tid:
    return Tid(Csn(csn - 1), NAMES[0], 1, csn)
