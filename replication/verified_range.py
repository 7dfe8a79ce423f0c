"""Reads the bytes of durable parts: each block is compared with its digest before it is returned."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final, Self

from tidelock.errors import CorruptError, TidelockError, UnavailableError
from tidelock.replication.core.digest import BLOCK_BYTES, BLOCK_DIGEST_BYTES, block_digest, blocks_of
from tidelock.replication.core.model import Location

#: Errors that concern this process or machine, and not the file.
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})


class VerifiedRange:
    """The bytes of a durable part, verified block by block at every read.

    Raises:
        CorruptError: The file does not exist or cannot be read.
        UnavailableError: This process lacks memory or open files; nothing is known of the part.
    """

    def __init__(self, data_dir: Path, location: Location) -> None:
        self._location = location
        if len(location.blocks) != blocks_of(location.length) * BLOCK_DIGEST_BYTES:
            raise CorruptError(f"{location.file} has digests for another length than {location.length} bytes")
        try:
            self._fd = os.open(data_dir / location.file, os.O_RDONLY)
        except OSError as error:
            raise _unreadable(location, error) from error

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset`` of the part; ValueError outside of it.

        Raises:
            CorruptError: The disk returned other bytes than were written, fewer of them, or an error.
            UnavailableError: As for opening it.
        """
        end = offset + length
        if not 0 <= offset <= end <= self._location.length:
            raise ValueError(f"bytes {offset}..{end} are outside a part of {self._location.length} bytes")
        pieces = []
        for number in range(offset // BLOCK_BYTES, blocks_of(end) if length else 0):
            start = number * BLOCK_BYTES
            pieces.append(self._block(number)[max(offset - start, 0) : end - start])
        return b"".join(pieces)

    def _block(self, number: int) -> memoryview:
        at = self._location
        start = number * BLOCK_BYTES
        try:
            data = os.pread(self._fd, min(BLOCK_BYTES, at.length - start), at.offset + start)
        except OSError as error:
            raise _unreadable(at, error) from error
        wanted = at.blocks[number * BLOCK_DIGEST_BYTES : (number + 1) * BLOCK_DIGEST_BYTES]
        if block_digest(data) != wanted:
            raise CorruptError(
                f"{at.file} does not hold what was written to its {len(data)} bytes from {at.offset + start}:"
                f" expected digest {wanted.hex()}, found {block_digest(data).hex()}; fetch the part again",
                file=at.file,
                offset=at.offset,
            )
        return memoryview(data)

    def forget_cached(self) -> None:
        """Ask the kernel to forget these bytes, so that the next read gets them from the disk."""
        at = self._location
        with contextlib.suppress(OSError):  # advice only
            os.posix_fadvise(self._fd, at.offset, at.length, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unreadable(location: Location, error: OSError) -> TidelockError:
    if error.errno in _SHORT:
        return UnavailableError(
            f"{location.file} cannot be read now ({error}); try again, or use another replica"
        )
    return CorruptError(
        f"{location.file} cannot be read ({error}); fetch its parts again",
        file=location.file,
        offset=location.offset,
    )
