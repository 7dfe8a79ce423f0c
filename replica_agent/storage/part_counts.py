"""The number of parts in each partition of each table: for back-pressure, and to find what to compact.

The counts are in memory, since every insert needs them. They are counted once when the agent starts, and
updated by every record that is applied here. Parts of undecided transactions do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tidelock.csnlog.core.ids import CSN_NONE, Csn, TableId
from tidelock.csnlog.core.model import AddPart, DefineTable, RemovePart, SkipPart
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replication.core.model import ResolvedRecord


@dataclass(slots=True)
class PartitionCounts:
    """One partition of a table.

    Attributes:
        parts: Number of its parts that are visible at the snapshot CSN of this replica.
        csn: CSN of the last change of that number; the start of the agent counts as a change.
    """

    parts: int = 0
    csn: Csn = CSN_NONE


class PartCounts:
    """The counts of this replica, for the thread of the event loop."""

    def __init__(self, reader: CatalogReader) -> None:
        """Count the parts in the catalog."""
        self._reader = reader
        self._tables: dict[TableId, dict[str, PartitionCounts]] = {}
        self._sizes: Counter[int] = Counter()  # the number of partitions for each number of parts
        #: Parts of the largest partition.
        self.largest = 0
        self._count_all()

    def _count_all(self) -> None:
        self._tables.clear()
        self._sizes.clear()
        self.largest = 0
        at = self._reader.snapshot_csn()
        for table, path, parts in self._reader.part_counts():
            self._count(table, path, parts, at)

    def applied(self, records: Sequence[ResolvedRecord]) -> None:
        """Follow records that the catalog has just applied, all of them."""
        declared = False
        for record in records:
            entries = [entry for tid in record.tids for entry in tid.entries]
            for entry in entries:
                if isinstance(entry, AddPart):
                    self._count(entry.table, entry.path, 1, record.csn)
            self._removed([entry for entry in entries if isinstance(entry, RemovePart)], record.csn)
            for entry in entries:
                if isinstance(entry, DefineTable) and entry.drops:
                    self._dropped(entry.table, record.csn)
            declared = declared or any(isinstance(entry, SkipPart) for entry in entries)
        if declared:
            self._count_all()  # an operator's word, which is rare

    def _removed(self, entries: Sequence[RemovePart], csn: Csn) -> None:
        """Subtract removed parts; their rows are still in the catalog, since nothing collects above S."""
        paths = self._reader.paths([entry.part for entry in entries])
        for entry in entries:
            if entry.part in paths:  # a part that is declared lost has no row
                self._count(entry.table, paths[entry.part], -1, csn)

    def _dropped(self, table: TableId, csn: Csn) -> None:
        """Subtract all parts of a table."""
        for path, found in self.partitions(table):
            self._count(table, path, -found.parts, csn)

    def _count(self, table: TableId, path: str, change: int, csn: Csn) -> None:
        partitions = self._tables.setdefault(table, {})
        found = partitions.setdefault(path, PartitionCounts())
        self._sizes[found.parts] -= 1
        found.parts, found.csn = found.parts + change, csn
        self._sizes[found.parts] += 1
        if not found.parts:
            del partitions[path]
        self.largest = max(self.largest, found.parts)
        while self.largest and not self._sizes[self.largest]:
            del self._sizes[self.largest]
            self.largest -= 1

    def of(self, table: TableId, path: str) -> int:
        """Return the number of parts of one partition."""
        found = self._tables.get(table, {}).get(path)
        return found.parts if found else 0

    def tables(self) -> list[TableId]:
        """Return the tables that have parts."""
        return [table for table, partitions in self._tables.items() if partitions]

    def partitions(self, table: TableId) -> Iterator[tuple[str, PartitionCounts]]:
        """Return the partitions of a table that have parts."""
        return iter([*self._tables.get(table, {}).items()])

    def total(self, table: TableId, paths: Iterable[str] | None = None) -> int:
        """Return the number of parts of a table, or of some of its partitions."""
        partitions = self._tables.get(table, {})
        chosen = partitions if paths is None else paths
        return sum(partitions[path].parts for path in chosen if path in partitions)
