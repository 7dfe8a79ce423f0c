"""The catalog as readers use it: every answer belongs to a CSN that could be served when the rows were read.

Without that tie an answer could be read from rows that garbage collection is deleting, and a deleted part
would look like a part that never existed: silently missing rows. So the check of the CSN and the read of the
rows share one SQLite transaction; the collector notes the horizon durably before its first delete (rule
horizon).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.csnlog.core.visibility import VISIBLE_SQL, visible_args
from tidelock.errors import BadRequestError, StandbyError
from tidelock.replica_agent.footers import combined
from tidelock.replica_agent.readers import hdfs
from tidelock.replica_agent.readers.paths import PART_SUFFIX, CombinedName, combined_of, part_of
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replica_agent.storage.catalog_schema import VISIBLE_OF_TABLE
from tidelock.replica_agent.tables.layouts import NO_LAYOUTS, Layout, Layouts

#: Above every CSN.
_END = Csn(1 << 62)


class FolderRow(msgspec.Struct, frozen=True):
    """The files of one folder in a listing: its parts, or several small ones as one file.

    Attributes:
        folder: Its path below the table.
        files: Number of its files.
        length: Total bytes of these.
        entries: What the listing says of each, with commas between.
        combined: The parts of each file that has several, by its name.
    """

    folder: str
    files: int
    length: int
    entries: bytes
    combined: dict[str, tuple[PartId, ...]] = msgspec.field(default_factory=dict)


@dataclass(slots=True)
class _File:
    """A file of a listing that is made: its parts, their form and layout, and the CSN of the last one."""

    form: str | None
    layout: Layout | None
    parts: list[PartId]
    rows: int
    length: int
    csn: Csn

    def add(self, part: PartId, rows: int, length: int, csn: Csn) -> None:
        """Add the part that follows."""
        self.parts.append(part)
        self.rows += rows
        self.length += length
        self.csn = csn


def file_length(parts: int, rows: int, length: int, layout: Layout | None) -> int:
    """Return the length of the file that shows so many parts, with so many rows and bytes together."""
    found = combined.length_of(length) if parts > 1 else length
    return found if layout is None else found - length + layout.length(rows, length)


def _folder_row(folder: str, files: Sequence[_File], time_ms: Callable[[Csn], int]) -> FolderRow:
    entries: list[bytes] = []
    several: dict[str, tuple[PartId, ...]] = {}
    total = 0
    for file in files:
        name = f"{file.parts[-1]}{PART_SUFFIX}"
        length = file_length(len(file.parts), file.rows, file.length, file.layout)
        if len(file.parts) > 1:
            name = str(CombinedName(file.parts[-1], len(file.parts), file.length))
            several[name] = tuple(file.parts)
        entries.append(hdfs.file_entry(name, length, time_ms(file.csn)))
        total += length
    return FolderRow(folder, len(files), total, b",".join(entries), several)


class SnapshotCatalog(CatalogReader):
    """Reads of the catalog at one CSN. For one thread, like its base."""

    @contextlib.contextmanager
    def serving(self, csn: Csn, table: TableId | None = None) -> Iterator[None]:
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

    def _check(self, csn: Csn, table: TableId | None) -> None:
        snapshot = self.snapshot_csn()
        if csn > snapshot:
            raise StandbyError(
                f"CSN {csn} is not applied on this replica, which is at {snapshot}", snapshot_csn=snapshot
            )
        self.require_kept(csn, table)

    def visible_part(self, part: PartId, table: TableId, at: Csn) -> PartRow | None:
        """Return a part of ``table`` if it is visible at ``at``."""
        where = f"part = :part AND table_name = :table AND kind = 'part' AND {VISIBLE_SQL}"
        sql = f"SELECT 1 FROM parts WHERE {where}"  # noqa: S608
        seen = self._db.execute(sql, {"part": part, "table": table} | visible_args(at)).fetchone()
        return self.part(part) if seen else None

    def combined_parts(self, name: CombinedName, table: TableId, path: str, at: Csn) -> tuple[PartId, ...]:
        """Return the parts of a folder that are one file at ``at``; none if it has no such parts.

        It walks the parts of the table from the last one backwards, so the event loop is no place for it.
        """
        where = f"table_name = :table AND path = :path AND kind = 'part' AND {VISIBLE_SQL}"
        sql = f"""
            SELECT part, length FROM parts
            WHERE {where} AND (creation_csn, part) <=
                (SELECT creation_csn, part FROM parts WHERE part = :last AND {where})
            ORDER BY creation_csn DESC, part DESC LIMIT :parts
        """  # noqa: S608
        args = {"table": table, "path": path, "last": name.last, "parts": name.parts} | visible_args(at)
        found = self._db.execute(sql, args).fetchall()
        fits = (len(found), sum(length for _, length in found)) == (name.parts, name.length)
        return tuple(part for part, _ in reversed(found)) if fits else ()

    def parts_of_file(self, file: str, table: TableId, at: Csn) -> tuple[PartId, ...]:
        """Return the parts of a file of ``table`` at ``at``, by its name; none if there is no such file."""
        if (part := part_of(file)) is not None:
            return () if self.visible_part(part, table, at) is None else (part,)
        if (name := combined_of(file)) is None or (last := self.part(name.last)) is None:
            return ()
        return self.combined_parts(name, table, last.path, at)

    def listed(
        self, table: TableId, at: Csn, small_bytes: int, parts_max: int, layouts: Layouts = NO_LAYOUTS
    ) -> list[FolderRow]:
        """Return the folders of ``table`` that have parts at ``at``, by path; their files are in order, too.

        Small parts that follow each other in the order of (creation CSN, part id) and have the same form and
        layout are one file. The time of a file is that of its last commit, 0 if it is unknown. As little as
        possible is done for each part: while it is done, it holds up every read of this process.

        Args:
            table: The table.
            at: The CSN.
            small_bytes: A part of this length or above is a file of its own; 0: each part is.
            parts_max: Most parts in one file.
            layouts: Those of the table at that CSN.
        """
        sql = f"""
            SELECT path, part, rows, length, creation_csn, iif(length < :small, form, NULL), columns_csn
            FROM {VISIBLE_OF_TABLE} ORDER BY creation_csn, part
        """  # noqa: S608
        folders: dict[str, list[_File]] = {}
        args = {"table": table, "small": small_bytes} | visible_args(at)
        # Parts come in the order of their CSNs, so a layout is that of a run of them, but for shared bytes.
        of_run: Layout | None = None
        until = Csn(0)
        for path, part, rows, length, csn, form, columns_csn in self._db.execute(sql, args):
            if csn >= until:
                of_run = layouts.of(csn)
                until = _END if of_run is None else of_run.below
            layout = of_run if columns_csn is None else layouts.of(columns_csn)
            files = folders.get(path)
            if files is None:
                files = folders[path] = []
            elif form is not None:
                last = files[-1]
                if last.form == form and last.layout is layout and len(last.parts) < parts_max:
                    last.add(part, rows, length, csn)
                    continue
            files.append(_File(form, layout, [part], rows, length, csn))
        times = functools.cache(self.time_ms)
        return [_folder_row(path, folders[path], times) for path in sorted(folders)]

    def time_ms(self, csn: Csn) -> int:
        """Return when a part created at ``csn`` was committed; 0 if that is unknown."""
        row = self._db.execute("SELECT time_ms FROM csns WHERE csn = ?", (csn,)).fetchone()
        return int(row[0]) if row else 0


def parts_of_files(data_dir: Path, table: TableId, at: Csn, files: Sequence[str]) -> list[PartId]:
    """Return the parts of files in the folders of ``table`` at ``at``, by their names, each once.

    Raises:
        BadRequestError: There is no such file.
        StandbyError, SnapshotTooOldError: The CSN cannot be served.
    """
    catalog = SnapshotCatalog(data_dir)
    try:
        found: dict[PartId, None] = {}
        with catalog.serving(at, table):
            for file in files:
                if not (parts := catalog.parts_of_file(file, table, at)):
                    raise BadRequestError(f"{file!a} is not a file of table {table} at CSN {at}", csn=at)
                found |= dict.fromkeys(parts)
        return [*found]
    finally:
        catalog.close()
