"""Reads held parts in the order in which they lie on the disk, for those that look for rot.

`HeldParts` finds them, `HeldBytes` compares the bytes of one with its checksum and the digests of its blocks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from tidelock.csnlog.core.ids import PartId
from tidelock.errors import CorruptError
from tidelock.replica_agent.storage.catalog_reads import PART_COLUMNS, PartRow
from tidelock.replication.core.digest import BLOCK_BYTES
from tidelock.replication.verified_range import VerifiedRange

#: Bytes that are read at a time.
PIECE_BYTES: Final = 4 * BLOCK_BYTES


class Place(msgspec.Struct, frozen=True):
    """A place in the order in which held parts lie on the disk; the default one is before all of them."""

    file: str = ""
    offset: int = -1
    part: str = ""

    @classmethod
    def of(cls, row: PartRow) -> Place:
        """Return the place of a held part."""
        return cls(row.file or "", row.offset, row.part)


class HeldParts:
    """The held parts of a catalog; used by one thread, and closed at the end.

    Args:
        data_dir: The agent's data directory; sqlite3.OperationalError if it has no catalog.
    """

    def __init__(self, data_dir: Path) -> None:
        uri = f"file:{data_dir / 'catalog.db'}?mode=ro"
        self._db = sqlite3.connect(uri, uri=True, isolation_level=None)

    def after(self, place: Place, limit: int) -> list[PartRow]:
        """Return the next parts behind a place, at most so many."""
        return self._rows(
            "AND file >= :file AND (file, offset, part) > (:file, :offset, :part) "
            "ORDER BY file, offset, part LIMIT :limit",
            {"file": place.file, "offset": place.offset, "part": place.part, "limit": limit},
        )

    def part(self, part: PartId) -> PartRow | None:
        """Return a part, or None if it is not held any more."""
        found = self._rows("AND part = :part AND file IS NOT NULL", {"part": part})
        return found[0] if found else None

    def total(self) -> tuple[int, int]:
        """Return (parts, bytes) of all of them; it reads all rows."""
        sql = "SELECT count(*), coalesce(sum(length), 0) FROM parts WHERE state = 'held'"
        parts, size = self._db.execute(sql).fetchone()
        return parts, size

    def _rows(self, condition: str, args: dict[str, str | int]) -> list[PartRow]:
        sql = f"SELECT {PART_COLUMNS} FROM parts WHERE state = 'held' {condition}"  # noqa: S608
        return [PartRow(*row) for row in self._db.execute(sql, args)]

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


class HeldBytes:
    """One reading of a part; close it at the end.

    Args:
        data_dir: The agent's data directory.
        row: A part that is held.
        from_disk: Whether the kernel is to read the disk again. Bytes in its memory say nothing of the disk.

    Raises:
        CorruptError: The file does not exist or cannot be read.
        UnavailableError: This process lacks memory or open files; nothing is known of the part.
    """

    def __init__(self, data_dir: Path, row: PartRow, *, from_disk: bool = False) -> None:
        location = row.held
        assert location is not None, f"part {row.part} is not held"
        self._row, self._length = row, location.length
        self._whole, self._read = xxhash.xxh3_128(), 0
        self._bytes = VerifiedRange(data_dir, location)
        if from_disk:
            self._bytes.forget_cached()

    @property
    def done(self) -> bool:
        """Whether all bytes were read."""
        return self._read == self._length

    def read(self, count: int) -> int:
        """Compare up to so many more bytes, and return their number; the last ones complete the checksum.

        Raises:
            CorruptError: The bytes are not those that were written.
            UnavailableError: As for the class.
        """
        count = min(count, self._length - self._read)
        self._whole.update(self._bytes.read(self._read, count))
        self._read += count
        if self.done and (found := self._whole.hexdigest()) != self._row.checksum:
            raise CorruptError(f"all blocks as noted, but checksum {found}", part=self._row.part)
        return count

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()


def fault_in(
    data_dir: Path, row: PartRow, *, from_disk: bool = False, read: Callable[[int], object] = lambda _: None
) -> str | None:
    """Read a held part as a whole; returns the fault in its bytes, None for no fault.

    Args:
        data_dir: As for `HeldBytes`, `row` and `from_disk` too.
        row: The part.
        from_disk: Whether the kernel is to read the disk again.
        read: Called with the number of bytes of each piece.

    Raises:
        UnavailableError: As for `HeldBytes`.
    """
    try:
        with closing(HeldBytes(data_dir, row, from_disk=from_disk)) as part:
            while not part.done:
                read(part.read(PIECE_BYTES))
    except CorruptError as error:
        return error.message
    return None
