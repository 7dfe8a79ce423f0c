"""Verified bytes of parts: whole blocks are read, compared with their digests, and only then returned.

After that, some bytes of the footers of older writers are changed (`footers/float_hints.py`), and
many small parts are shown as one file (`footers/combined.py`). Blocking file access, for use in a
thread. A damaged, truncated or missing file is a :class:`DamagedPartError`, which describes the damage; no
byte of a block that does not match ever leaves this module (docs/adr/0004-verified-reads.md; I9).
"""

from __future__ import annotations

import bisect
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec

from tidelock.csnlog.core.ids import PartId
from tidelock.errors import CorruptError
from tidelock.replica_agent.footers.combined import CombinedFooter
from tidelock.replica_agent.footers.float_hints import Change
from tidelock.replica_agent.footers.thrift import footer_in
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replication.core.digest import BLOCK_BYTES, BLOCK_DIGEST_BYTES, block_digest, blocks_of


class Place(msgspec.Struct, frozen=True):
    """The location of a part when it was opened. A repaired part has another file, inode or time."""

    file: str
    offset: int
    inode: int
    changed_ns: int


class DamagedPartError(CorruptError):
    """The stored bytes differ from the catalog; ``place`` distinguishes this damage from a later repair."""

    def __init__(self, part: PartId, detail: str, place: Place) -> None:
        """Describe the damage of a part."""
        super().__init__(f"part {part} is damaged: {detail}", part=part)
        self.part = part
        self.detail = detail
        self.place = place


class Readable(Protocol):
    """Bytes that are read at positions."""

    def read(self, start: int, end: int, bytes_max: int) -> memoryview:
        """Return bytes from ``start`` on, at least one, as :meth:`PartFile.read`."""

    def read_cached(self, start: int, end: int, bytes_max: int) -> memoryview | None:
        """As :meth:`read`, but None where that would wait for the disk."""


class Span(msgspec.Struct, frozen=True):
    """Where bytes of a file that is served are read: in ``file``, from ``start`` up to ``end``."""

    file: Readable
    start: int
    end: int


class Source(Protocol):
    """A file that is served.

    Attributes:
        part: A part in it, for messages.
    """

    part: PartId

    def span(self, start: int, end: int) -> Span:
        """Return where the bytes from ``start`` on are, up to ``end`` or less.

        It holds until the next call.
        """

    def close(self) -> None:
        """Close what is open; a second call does nothing."""


class PartFile:
    """An open part. It stays readable when the file is deleted meanwhile.

    Attributes:
        part: Its id.
        length: Its length in bytes.
        place: Its location.
    """

    def __init__(self, data_dir: Path, row: PartRow) -> None:
        """Open the file of a held part.

        Raises:
            DamagedPartError: The file is missing or too short, or the catalog's digests do not cover it.
            OSError: The system refuses for another reason, e.g. too many open files.
        """
        assert row.file is not None, row
        self.part = row.part
        self.length = row.length
        self._changes: tuple[Change, ...] = ()
        self._blocks = row.blocks
        try:
            self._fd = os.open(data_dir / row.file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            place = Place(row.file, row.offset, 0, 0)
            raise DamagedPartError(row.part, f"file {row.file} is missing", place) from None
        stat = os.fstat(self._fd)
        self.place = Place(row.file, row.offset, stat.st_ino, stat.st_ctime_ns)
        try:
            if stat.st_size < row.offset + row.length:
                self._damaged(
                    f"file {row.file} ends at byte {stat.st_size}, the part at {row.offset + row.length}"
                )
            if len(self._blocks) != blocks_of(row.length) * BLOCK_DIGEST_BYTES:
                self._damaged(f"{len(self._blocks)} bytes of block digests for {row.length} bytes")
        except DamagedPartError:
            self.close()
            raise

    def span(self, start: int, end: int) -> Span:
        """Return the range itself, in this file."""
        return Span(self, start, end)

    def show(self, changes: tuple[Change, ...]) -> None:
        """Return other bytes at these positions from now on; they are in order."""
        self._changes = changes

    def read(self, start: int, end: int, bytes_max: int) -> memoryview:
        """Return verified bytes from ``start`` up to ``end``, or as many blocks as fit ``bytes_max``.

        At least one block is read. The result begins at ``start`` and is not empty.

        Raises:
            DamagedPartError: A block does not match its digest, the file ends early, or the disk cannot read
                it.
        """
        begin, size = self._blocks_for(start, end, bytes_max)
        data = self._verified(begin, self._pread(size, self.place.offset + begin))
        return self._shown(start, data[start - begin : end - begin])

    def read_cached(self, start: int, end: int, bytes_max: int) -> memoryview | None:
        """As :meth:`read`, but without waiting for the disk: None if the system's cache has not all of it.

        Raises:
            DamagedPartError: A block does not match its digest.
        """
        begin, size = self._blocks_for(start, end, bytes_max)
        data = bytearray(size)
        try:
            count = os.preadv(self._fd, [data], self.place.offset + begin, os.RWF_NOWAIT)
        except OSError:
            return None  # not cached, or unknown to the file system: a blocking read finds out what is wrong
        if count != size:
            return None
        return self._shown(start, self._verified(begin, data)[start - begin : end - begin])

    def footer(self) -> bytes | None:
        """Return the stored footer, without its length and mark; None if this is no Parquet file.

        Raises:
            DamagedPartError: As :meth:`read`.
        """
        try:
            return footer_in(self._stored, self.length)
        except ValueError:
            return None

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _stored(self, at: int, size: int) -> bytes:
        """Return bytes as they are stored."""
        found = bytearray()
        while len(found) < size:
            start = at + len(found)
            begin, length = self._blocks_for(start, at + size, BLOCK_BYTES)
            data = self._verified(begin, self._pread(length, self.place.offset + begin))
            found += data[start - begin : at + size - begin]
        return bytes(found)

    def _shown(self, start: int, data: memoryview) -> memoryview:
        """Return verified bytes with the changes made to those from ``start`` on."""
        first = bisect.bisect_left(self._changes, (start,))
        for at, byte in self._changes[first:]:
            if at >= start + len(data):
                break
            data[at - start] = byte
        return data

    def _blocks_for(self, start: int, end: int, bytes_max: int) -> tuple[int, int]:
        """Return where the blocks of a read begin in the part, and their length in bytes."""
        assert 0 <= start < end <= self.length, (start, end, self.length)
        first = start // BLOCK_BYTES
        count = min(max(1, bytes_max // BLOCK_BYTES), blocks_of(end) - first)
        begin = first * BLOCK_BYTES
        return begin, min(count * BLOCK_BYTES, self.length - begin)

    def _verified(self, begin: int, read: bytearray) -> memoryview:
        """Return the bytes of whole blocks from ``begin``, after a comparison of each with its digest."""
        data = memoryview(read)
        for at in range(0, len(data), BLOCK_BYTES):
            number = (begin + at) // BLOCK_BYTES
            digest = self._blocks[number * BLOCK_DIGEST_BYTES : (number + 1) * BLOCK_DIGEST_BYTES]
            if block_digest(data[at : at + BLOCK_BYTES]) != digest:
                self._damaged(f"block {number} of file {self.place.file} does not match its digest")
        return data

    def _pread(self, size: int, offset: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        done = 0
        while done < size:
            try:
                count = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self._damaged(f"the disk cannot read file {self.place.file} near byte {offset + done}")
            if count == 0:
                self._damaged(f"file {self.place.file} ends at byte {offset + done}")
            done += count
        return data

    def _damaged(self, detail: str) -> NoReturn:
        raise DamagedPartError(self.part, detail, self.place)


class _Held(msgspec.Struct, frozen=True):
    """Bytes in memory."""

    data: bytes

    def read(self, start: int, end: int, bytes_max: int) -> memoryview:
        return memoryview(self.data)[start : min(end, start + bytes_max)]

    read_cached = read


class CombinedFile:
    """Parts as one Parquet file with a footer that is made; one of them is open at a time.

    Attributes:
        part: The part that was opened last.
    """

    def __init__(
        self, parts: Sequence[PartId], footer: CombinedFooter, opens: Callable[[PartId], PartFile]
    ) -> None:
        """Open no part yet.

        Args:
            parts: Their ids.
            footer: The layout that they have together.
            opens: Opens one of them; :meth:`span` raises its errors.
        """
        self.part = parts[-1]
        self._parts = parts
        self._footer = footer
        self._opens = opens
        self._open: tuple[int, PartFile] | None = None

    def span(self, start: int, end: int) -> Span:
        """Return a range of one part, of the pages or zeros behind all parts, or of the footer."""
        starts, pages, footer = self._footer.starts, self._footer.pages, self._footer.end
        footer_start = self._footer.length - len(footer)
        if start >= footer_start:
            return Span(_Held(footer), start - footer_start, end - footer_start)
        if start >= starts[-1]:
            if (at := start - starts[-1]) < len(pages):
                return Span(_Held(pages), at, min(end - starts[-1], len(pages)))
            size = min(end, footer_start, start + BLOCK_BYTES) - start
            return Span(_Held(bytes(size)), 0, size)
        number = bisect.bisect_right(starts, start) - 1
        return Span(self._part(number), start - starts[number], min(end, starts[number + 1]) - starts[number])

    def close(self) -> None:
        """Close the part that is open."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _part(self, number: int) -> PartFile:
        if self._open is None or self._open[0] != number:
            self.close()
            self.part = self._parts[number]
            self._open = number, self._opens(self.part)
        return self._open[1]
