"""Compares the bytes of a held part with its checksum and the digests of its blocks, a piece at a time."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import xxhash

from tidelock.errors import CorruptError
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replication.partfs import VerifiedRange


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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()
