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
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow


@dataclass(frozen=True, slots=True)
class FileRow:
    """The data of one part in a listing; ``time_ms``: Unix time of its commit in ms, 0 = unknown."""

    folder: str
    part: PartId
    length: int
    time_ms: int


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

    def listed(self, table: TableName, at: Csn) -> list[FileRow]:
        """Return the rows of listings of ``table`` at ``at``, by folder and part: a fraction of each row."""
        sql = f"""
            SELECT path, part, length, coalesce(csns.time_ms, 0)
            FROM parts LEFT JOIN csns ON csns.csn = creation_csn
            WHERE table_name = :table AND kind = 'part' AND {VISIBLE_SQL} ORDER BY path, part
        """  # noqa: S608
        return [FileRow(*row) for row in self._db.execute(sql, {"table": table} | visible_args(at))]

    def time_ms(self, csn: Csn) -> int:
        """Return when a part created at ``csn`` was committed; 0 if that is unknown."""
        row = self._db.execute("SELECT time_ms FROM csns WHERE csn = ?", (csn,)).fetchone()
        return int(row[0]) if row else 0
