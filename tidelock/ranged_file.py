"""A file that is read by ranges, for Arrow's Parquet reader, from any source of bytes."""

from __future__ import annotations

import io
from abc import abstractmethod


class RangedFile(io.RawIOBase):
    """A seekable file for reading, whose subclasses define the source of its bytes.

    Args:
        length: Length of the file, in bytes.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length
        self._position = 0

    @abstractmethod
    def read_range(self, start: int, size: int) -> bytes:
        """Return exactly `size` bytes from `start` on; the range is within the file."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position and return it."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = begin + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, fewer only at the end of the file; all the rest if `size` is negative."""
        remaining = max(self._length - self._position, 0)
        data = self.read_range(self._position, remaining if size < 0 else min(size, remaining))
        self._position += len(data)
        return data
