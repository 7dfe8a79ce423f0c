"""A file that is read by ranges, for Arrow's Parquet reader, wherever its bytes come from."""

from __future__ import annotations

import io
from abc import abstractmethod


class RangedFile(io.RawIOBase):
    """A seekable file for reading; `read_range` says where its bytes come from.

    Args:
        length: Of the file, in bytes.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length
        self._position = 0

    @abstractmethod
    def read_range(self, start: int, size: int) -> bytes:
        """Return exactly so many bytes from `start` on; they are within the file."""

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = begin + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, fewer only at the end."""
        left = max(self._length - self._position, 0)
        data = self.read_range(self._position, left if size < 0 else min(size, left))
        self._position += len(data)
        return data
