"""The contents of the disks of a run, as the judge finds them: catalogs, parts and packs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.sim.catalog import reading
from tidelock.csnlog.core.codec import decode_entries
from tidelock.csnlog.core.ids import CSN_NONE, Csn
from tidelock.csnlog.core.model import Entry
from tidelock.replica_agent.storage import pack_index
from tidelock.replication.core.model import Location
from tidelock.replication.partfs import PartFs


class DiskContents:
    """The disks, each by its id or by its folder, which has the id of its first disk as its name.

    Args:
        folder: The folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._catalogs: dict[str, sqlite3.Connection] = {}
        #: The folders of disks that got another id by a clone, and what they held under the former one.
        self._folders: dict[str, str] = {}
        self._held_before: dict[str, frozenset[str]] = {}

    def close(self) -> None:
        """Give the catalogs back."""
        for db in self._catalogs.values():
            db.close()

    # -- catalogs --------------------------------------------------------------------------------------------

    def catalog(self, disk: str) -> sqlite3.Connection:
        """Return the catalog of a disk or folder."""
        folder = self._folder_of(disk)
        if folder not in self._catalogs:
            self._catalogs[folder] = reading(self._data(folder))
        return self._catalogs[folder]

    def replaced(self, folder: str) -> None:
        """Open the catalog of a folder again next time: another file has its place."""
        if (db := self._catalogs.pop(folder, None)) is not None:
            db.close()

    # -- clones ----------------------------------------------------------------------------------------------

    def is_known(self, disk: str) -> bool:
        """Tell whether an id is that of a folder, or of a clone that was noted."""
        return disk in self._folders or (self._folder / disk).exists()

    def cloned(self, before: str | None, disk: str, folder: str) -> None:
        """A clone replaces what a folder held; a home may count that until it has read the new session."""
        self._folders[disk] = folder
        if before is not None and self._folder_of(before) == folder:
            held = self.catalog(before).execute("SELECT part FROM parts WHERE state = 'held'")
            self._held_before[before] = frozenset(part for (part,) in held)

    def in_use(self, disk: str) -> None:
        """A disk is registered again: in the state of ZooKeeper that counts its clone never was."""
        self._held_before.pop(disk, None)

    # -- parts -----------------------------------------------------------------------------------------------

    def holds(self, disk: str, parts: Sequence[str]) -> bool:
        """Tell whether a disk holds parts, or held them before a clone replaced it in its folder."""
        if disk in self._held_before:
            return self._held_before[disk].issuperset(parts)
        return self.lie_in(self._folder_of(disk), parts)

    def lie_in(self, folder: str, parts: Sequence[str]) -> bool:
        """Tell whether a folder holds parts, or gives them back at the next start."""
        marks = ",".join("?" * len(parts))
        sql = f"SELECT part FROM parts WHERE state = 'held' AND part IN ({marks})"
        missing = set(parts) - {part for (part,) in self.catalog(folder).execute(sql, parts)}
        return not missing or missing <= self._in_packs(folder)

    def landed(self, folder: str) -> dict[str, set[str]]:
        """Return the parts of landings that a folder holds and no record names, by transaction."""
        sql = """
            SELECT creation_tid, part FROM parts JOIN prepared ON tid = creation_tid
            WHERE kind = 'landed' AND creation_csn IS NULL AND state = 'held'
        """
        found: dict[str, set[str]] = {}
        for tid, part in self.catalog(folder).execute(sql):
            found.setdefault(tid, set()).add(part)
        return found

    def entries(self, disks: Iterable[str], manifest: str) -> Sequence[Entry] | None:
        """Return the entries of a manifest, from the first disk that has it; None if there is none."""
        sql = "SELECT file, offset, length, blocks FROM parts WHERE part = ? AND state = 'held'"
        for disk in disks:
            if found := self.catalog(disk).execute(sql, (manifest,)).fetchone():
                return decode_entries(PartFs(self._data(self._folder_of(disk))).read(Location(*found)))
        return None

    def _in_packs(self, folder: str) -> set[str]:
        """Return the parts that only their packs know, where a power cut has taken the rows."""
        files = PartFs(self._data(folder))
        paths = [path for (path,) in self.catalog(folder).execute("SELECT path FROM packs")]
        packs = [pack for path in paths if (pack := pack_index.read(files, path)) is not None]
        return {staged.meta.part for index, _ in packs for staged in index.parts}

    def _folder_of(self, disk: str) -> str:
        return self._folders.get(disk, disk)

    def _data(self, folder: str) -> Path:
        return self._folder / folder / "data"


def snapshot_of(db: sqlite3.Connection) -> Csn:
    """Return the snapshot CSN of a catalog."""
    return meta_of(db, "snapshot_csn")


def meta_of(db: sqlite3.Connection, key: str) -> Csn:
    """Return a CSN, or another number, of a catalog's table `meta`; 0 if it is not there."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return Csn(row[0]) if row else CSN_NONE
