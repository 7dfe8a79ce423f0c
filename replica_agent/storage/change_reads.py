"""Reads change sets from the catalog.

A removed part stays in the catalog until the horizon of its table has passed its removal. So while ``since``
is promised, every part that was added or removed above it exists with its bytes, even if compaction has
replaced it meanwhile.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from operator import itemgetter

from msgspec.structs import replace

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.replica_agent.storage.catalog_reads import PART_COLUMNS, CatalogReader, PartRow
from tidelock.replica_agent.storage.change_sets import (
    CsnChangePage,
    CsnChanges,
    PartChange,
    admit,
)

# Both are read lazily in the order of their index; the plus keeps the second to the index of removals.
_ADDED = f"""
    SELECT creation_csn, 0, creation_tid, creation_csn, removal_csn, {PART_COLUMNS} FROM parts
    WHERE table_name = :t AND creation_csn > :since AND creation_csn <= :until
        AND (creation_change OR :merges) AND kind = 'part'
    ORDER BY creation_csn, path, part
"""  # noqa: S608 - names of columns
_REMOVED = f"""
    SELECT removal_csn, 1, removal_tid, creation_csn, removal_csn, {PART_COLUMNS} FROM parts
    WHERE removal_csn > :since AND removal_csn <= :until AND +table_name = :t
        AND (removal_change OR :merges) AND kind = 'part'
    ORDER BY removal_csn, path, part
"""  # noqa: S608 - names of columns


class ChangeReader(CatalogReader):
    """Reads change sets; for one thread, like its base."""

    def page(
        self,
        table: TableId,
        since: Csn,
        until: Csn,
        *,
        files_max: int,
        bytes_max: int,
        merges: bool = False,
    ) -> CsnChangePage:
        """Return the change sets of a table in (since, until], as many as fit, at least one; see `admit`.

        ``until`` must be applied here. With ``merges`` they have the parts of compactions, too.

        Raises:
            SnapshotTooOldError: ``since`` is below the horizon of the table.
        """
        found = self._sets(table, since, until, merges=merges)
        page = admit(found, since, until, files_max=files_max, bytes_max=bytes_max)
        self.require_kept(since, table)  # after the read: what is promised now existed all the time
        return replace(page, time_ms=self._time_ms(page.to))

    def _sets(self, table: TableId, since: Csn, until: Csn, *, merges: bool) -> Iterator[CsnChanges]:
        args = {"t": table, "since": since, "until": until, "merges": merges}
        rows = heapq.merge(
            self._db.execute(_ADDED, args), self._db.execute(_REMOVED, args), key=itemgetter(0)
        )
        for csn, group in itertools.groupby(rows, key=itemgetter(0)):
            sides: tuple[list[PartChange], list[PartChange]] = ([], [])
            for _, side, tid, begin, end, *part in group:
                sides[side].append(PartChange(PartRow(*part), tid, begin, end))
            yield CsnChanges(csn, self._time_ms(csn), *sides)

    def _time_ms(self, csn: Csn) -> int:
        row = self._db.execute("SELECT time_ms FROM csns WHERE csn = ?", (csn,)).fetchone()
        return int(row[0]) if row else 0  # missing only if the CSN is no longer promised
