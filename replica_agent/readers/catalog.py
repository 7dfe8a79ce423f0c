"""The catalog as readers use it: every answer belongs to a CSN that could be served when the rows were read.

Without that tie an answer could be read from rows that garbage collection is deleting, and a deleted part
would look like a part that never existed: silently missing rows. So the check of the CSN and the read of the
rows share one SQLite transaction; the collector notes the horizon durably before its first delete (rule
horizon).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from tidelock.csnlog.core.ids import Csn, PartId, TableName
from tidelock.csnlog.core.visibility import VISIBLE_SQL, visible_args
from tidelock.errors import StandbyError
from tidelock.replica_agent.readers.hdfs import FILE_ENTRY
from tidelock.replica_agent.readers.paths import PART_SUFFIX
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow


@dataclass(frozen=True, slots=True)
class FolderRow:
    """The parts of one folder in a listing.

    Attributes:
        folder: Its path below the table.
        files: Number of its parts.
        length: Total bytes of these.
        entries: What the listing says of each, with commas between.
    """

    folder: str
    files: int
    length: int
    entries: bytes


class SnapshotCatalog(CatalogReader):
    """Reads of the catalog at one CSN. For one thread, like its base."""

    @contextlib.contextmanager
    def serving(self, csn: Csn, table: TableName | None = None) -> Iterator[None]:
        """Run all reads of the block in one transaction, in which ``csn`` is applied and promised.

        With ``table`` only that table is read, whose history may be longer.

        Raises:
            StandbyError: ``csn`` is not applied here yet.
            SnapshotTooOldError: ``csn`` is below the horizon.
        """
        self._db.execute("BEGIN")
        try:
            self._check(csn, table)
            yield
        finally:
            self._db.execute("COMMIT")

    def _check(self, csn: Csn, table: TableName | None) -> None:
        snapshot = self.snapshot_csn()
        if csn > snapshot:
            raise StandbyError(
                f"CSN {csn} is not applied on this replica, which is at {snapshot}", snapshot_csn=snapshot
            )
        self.require_kept(csn, table)

    def visible_part(self, part: PartId, table: TableName, at: Csn) -> PartRow | None:
        """Return a part of ``table`` if it is visible at ``at``."""
        where = f"part = :part AND table_name = :table AND kind = 'part' AND {VISIBLE_SQL}"
        sql = f"SELECT 1 FROM parts WHERE {where}"  # noqa: S608
        seen = self._db.execute(sql, {"part": part, "table": table} | visible_args(at)).fetchone()
        return self.part(part) if seen else None

    def listed(self, table: TableName, at: Csn) -> list[FolderRow]:
        """Return the folders of ``table`` that have parts at ``at``, by path; their parts are in order, too.

        SQLite makes the text: as objects of Python a hundred thousand parts take twice as long, and hold up
        every read of this process meanwhile. The time of a part is that of its commit, 0 if it is unknown.
        """
        sql = f"""
            SELECT path, count(*), sum(length),
                CAST(group_concat(printf(:entry, ms, length, ms, json_quote(part || :suffix))) AS BLOB)
            FROM (
                SELECT path, part, length, coalesce(csns.time_ms, 0) AS ms
                FROM parts LEFT JOIN csns ON csns.csn = creation_csn
                WHERE table_name = :table AND kind = 'part' AND {VISIBLE_SQL} ORDER BY path, part
            ) GROUP BY path
        """  # noqa: S608
        args = {"table": table, "entry": FILE_ENTRY, "suffix": PART_SUFFIX} | visible_args(at)
        return [FolderRow(*row) for row in self._db.execute(sql, args)]

    def time_ms(self, csn: Csn) -> int:
        """Return when a part created at ``csn`` was committed; 0 if that is unknown."""
        row = self._db.execute("SELECT time_ms FROM csns WHERE csn = ?", (csn,)).fetchone()
        return int(row[0]) if row else 0
