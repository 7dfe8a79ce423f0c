"""The folders of one table at one CSN, with each listing serialised once."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidelock.csnlog.core.ids import PartId
from tidelock.replica_agent.readers import hdfs
from tidelock.replica_agent.readers.catalog import FolderRow
from tidelock.replica_agent.readers.paths import COMMON_METADATA

#: A larger listing counts as several entries of the cache, so that the cache's bound also bounds memory.
ENTRY_BYTES = 64 << 10
#: Memory of the id of a part in a combined file, about.
_PART_BYTES = 80


class TableFolder(msgspec.Struct, frozen=True):
    """One folder.

    Attributes:
        listing: The answer to LISTSTATUS.
        folders: Number of folders in it, itself not counted.
        files: Number of files in it.
        length: Total bytes of these files.
    """

    listing: bytes
    folders: int
    files: int
    length: int


class FolderTree(msgspec.Struct, frozen=True):
    """All folders of a table at a CSN by their path below it; ``""``, the table's own, always exists.

    Attributes:
        folders: The folders.
        combined: The parts of each file that has several, by its path below the table.
    """

    folders: dict[str, TableFolder]
    combined: dict[str, tuple[PartId, ...]] = msgspec.field(default_factory=dict)

    @property
    def weight(self) -> int:
        """The number of entries of the listing cache that it occupies."""
        listings = sum(1 + len(folder.listing) // ENTRY_BYTES for folder in self.folders.values())
        return listings + sum(map(len, self.combined.values())) * _PART_BYTES // ENTRY_BYTES

    def totals(self, path: str) -> tuple[int, int, int]:
        """Return (folders, files, bytes) of a folder and all below it, the folder itself counted."""
        prefix = f"{path}/" if path else ""
        inside = [folder for name, folder in self.folders.items() if name == path or name.startswith(prefix)]
        return len(inside), sum(folder.files for folder in inside), sum(folder.length for folder in inside)


def build(rows: Iterable[FolderRow], common_metadata_length: int) -> FolderTree:
    """Build the tree of a table from its folders that have visible parts."""
    metadata = hdfs.file_entry(COMMON_METADATA, common_metadata_length, 0)
    children: dict[str, set[str]] = {"": set()}
    combined: dict[str, tuple[PartId, ...]] = {}
    files = {"": [FolderRow("", 1, common_metadata_length, metadata)]}
    for row in rows:
        _names_in(row.folder, children)
        files.setdefault(row.folder, []).append(row)
        prefix = f"{row.folder}/" if row.folder else ""
        combined |= {prefix + name: parts for name, parts in row.combined.items()}
    folders = {}
    for path, names in children.items():
        here = files.get(path, [])
        listing = hdfs.file_statuses(
            [hdfs.folder_entry(name) for name in sorted(names)] + [row.entries for row in here]
        )
        folders[path] = TableFolder(
            listing, len(names), sum(row.files for row in here), sum(row.length for row in here)
        )
    return FolderTree(folders, combined)


def _names_in(path: str, children: dict[str, set[str]]) -> set[str]:
    """Return the folder names in a folder; a new name is added to the folders that lead to it."""
    if path not in children:
        children[path] = set()
        parent, _, name = path.rpartition("/")
        _names_in(parent, children).add(name)
    return children[path]
