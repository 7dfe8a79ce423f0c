"""Answers to ``POST /parts``: many small parts for another replica in one answer (docs/protocol.md#parts).

Files are read in threads, some parts at a time, so the event loop is free between two pieces of an answer.
Each part is verified as a whole before a byte of it is sent. One that is not whole here is answered as such,
and the answer goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from tidelock.csnlog.core.ids import PartId
from tidelock.replica_agent.readers.catalog import SnapshotCatalog
from tidelock.replica_agent.readers.content import DamagedPartError, PartFile
from tidelock.replica_agent.readers.counters import ReaderCounters
from tidelock.replica_agent.readers.streams import Streams, cut, is_same_place
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replication.core.digest import BLOCK_BYTES
from tidelock.replication.core.part_frames import GROUP_BYTES_MAX, LackedPart, PartFrame, SentPart, encode

_MEDIA_TYPE: Final = "application/vnd.tidelock.parts"
#: Parts whose rows are read at a time: the event loop does that.
_ROWS_MAX: Final = 100


class PartGroupAnswers(msgspec.Struct, frozen=True):
    """Sends groups of parts, committed or not."""

    catalog: SnapshotCatalog
    streams: Streams
    counters: ReaderCounters

    async def send(self, request: web.Request, parts: Sequence[PartId]) -> web.StreamResponse:
        """Answer with one frame for each part. A failure after the first byte cuts the connection."""
        response = web.StreamResponse(headers={"Content-Type": _MEDIA_TYPE})
        with self.streams.answering():
            try:
                await response.prepare(request)
                await self._send_all(response, parts)
                await response.write_eof()
            except ConnectionError:
                pass  # the other replica has gone, or has what it wanted
            except BaseException as error:
                cut(request)
                self.streams.link.log("reader.cut", part=f"{len(parts)} parts", error=repr(error))
                if not isinstance(error, Exception):
                    raise
        return response

    async def _send_all(self, response: web.StreamResponse, parts: Sequence[PartId]) -> None:
        left = GROUP_BYTES_MAX
        for begin in range(0, len(parts), _ROWS_MAX):
            asked = parts[begin : begin + _ROWS_MAX]
            rows = self.catalog.held_rows(asked)
            fitting: list[PartRow] = []
            lacked: list[PartFrame] = []
            for part in asked:
                row = rows.get(part)
                if row is None:
                    lacked.append(LackedPart(part, "it is not held on this replica"))
                elif row.length > left:
                    lacked.append(LackedPart(part, "it does not fit into this answer; ask for it again"))
                else:
                    left -= row.length
                    fitting.append(row)
            await self._write(response, lacked)
            for few in _pieces(fitting, self.streams.chunk_bytes):
                await self._write(response, await self._read(few))

    async def _read(self, rows: Sequence[PartRow]) -> list[PartFrame]:
        """Return the frames of parts whose files are read now."""
        found = await self.streams.in_thread(_read_all, self.streams.data_dir, rows)
        frames: list[PartFrame] = []
        for row, data in zip(rows, found, strict=True):
            if isinstance(data, bytes):
                frames.append(SentPart(row.part, data))
                continue
            if isinstance(data, DamagedPartError):
                if is_same_place(row, self.catalog.part(row.part)):
                    self.streams.report(data)
            else:
                self.streams.link.log("reader.short", part=row.part, error=repr(data))
            frames.append(LackedPart(row.part, "it cannot be read on this replica now"))
        return frames

    async def _write(self, response: web.StreamResponse, frames: Sequence[PartFrame]) -> None:
        if frames:
            sent = [frame for frame in frames if isinstance(frame, SentPart)]
            self.counters.add("opens", len(sent))
            self.counters.add("bytes", sum(len(frame.data) for frame in sent))
            await response.write(b"".join(map(encode, frames)))


def _pieces(rows: Sequence[PartRow], bytes_max: int) -> Iterator[list[PartRow]]:
    """Cut rows into pieces of at most so many bytes of parts; a part that is larger is a piece."""
    piece: list[PartRow] = []
    size = 0
    for row in rows:
        if piece and size + row.length > bytes_max:
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += row.length
    if piece:
        yield piece


def _read_all(data_dir: Path, rows: Sequence[PartRow]) -> list[bytes | DamagedPartError | OSError]:
    """Return the verified bytes of each part, or why there are none."""
    return [_read_one(data_dir, row) for row in rows]


def _read_one(data_dir: Path, row: PartRow) -> bytes | DamagedPartError | OSError:
    try:
        file = PartFile(data_dir, row)
        try:
            # Whole blocks are read: a bound of the length alone would leave out a last one that is not whole.
            return bytes(file.read(0, row.length, row.length + BLOCK_BYTES)) if row.length else b""
        finally:
            file.close()
    except (DamagedPartError, OSError) as error:
        return error
