"""Reads of small parts from other replicas, many in one request and answer (rule apply).

A request of its own for each part costs both replicas some milliseconds, whatever its size: a clone of tens
of thousands of small parts took minutes. While one request to a holder is under way, the reads that follow
collect, and go together in the next one (docs/protocol.md#parts). A read without company is a request for
that part alone, as for large ones.

Each read ends by itself. A part that the holder lacks fails that read only. Of an answer that breaks off, the
parts that came whole count. A holder of an older version does not know the request: then each part of the
group is read alone.

Failure model: as :mod:`tidelock.replication.peers`. A holder that sends nothing fails the reads that wait
for it too: each of them would wait as long again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from tidelock.errors import CorruptError, RefusedError, StandbyError, UnavailableError
from tidelock.replication.core.model import PartMeta
from tidelock.replication.core.part_frames import GROUP_BYTES_MAX, GROUP_PARTS_MAX, LackedPart, SentPart
from tidelock.replication.peers import NoGroupsError, PeerClient


class _Read(msgspec.Struct, frozen=True, eq=False):
    """One part that is waited for."""

    meta: PartMeta
    silence_s: float
    data: asyncio.Future[bytes]


@dataclass(slots=True, eq=False)
class PartGroups:
    """The reads of small parts of one lane; one request to each holder at a time.

    The caller bounds how many reads there are, and their bytes.
    """

    client: PeerClient
    #: By the address of a holder: the reads that wait while a request to it is under way.
    _waiting: dict[str, deque[_Read]] = field(default_factory=dict, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def read(self, holder: str, meta: PartMeta, *, silence_s: float) -> bytes:
        """Return the bytes of a part, of the right length; the caller compares the checksum.

        Args:
            holder: ``host:port`` of the reader workers of a replica.
            meta: The part.
            silence_s: Longest silence of the holder; of parts in one request the longest one of them.

        Raises:
            RefusedError: The holder lacks the part.
            UnavailableError: The holder is not reached, broke off, or cannot send the part now.
            CorruptError: The holder has another part under this id.
        """
        read = _Read(meta, silence_s, asyncio.get_running_loop().create_future())
        if holder in self._waiting:
            self._waiting[holder].append(read)
        else:
            self._waiting[holder] = deque([read])
            task = asyncio.create_task(self._work(holder), name=f"fetch from {holder}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await read.data

    async def close(self) -> None:
        """Cut the requests under way; reads that still wait are cancelled."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, holder: str) -> None:
        """Ask a holder until nothing waits for it."""
        waiting = self._waiting[holder]
        group: list[_Read] = []
        try:
            while group := _next_group(waiting):
                error = await self._ask(holder, group)
                if error is not None:
                    if _is_silence(error) and not any(_is_answered(read) for read in group):
                        group += waiting
                        waiting.clear()
                    _fail(group, error)
        finally:
            del self._waiting[holder]
            for read in (*group, *waiting):  # those that are left when this task is cancelled
                read.data.cancel()

    async def _ask(self, holder: str, group: Sequence[_Read]) -> Exception | None:
        """Read the parts of a group; return the error of the reads that got no answer of their own."""
        try:
            if len(group) > 1:
                await self._ask_together(holder, group)
            else:
                await self._ask_alone(holder, group[0])
        except NoGroupsError:
            errors = await asyncio.gather(*(self._ask(holder, [read]) for read in group))
            for read, error in zip(group, errors, strict=True):
                if error is not None:
                    _fail([read], error)
        except Exception as error:
            return error
        return None

    async def _ask_together(self, holder: str, group: Sequence[_Read]) -> None:
        reads = {read.meta.part: read for read in group}
        silence_s = max(read.silence_s for read in group)
        async with aclosing(self.client.read_parts(holder, list(reads), silence_s=silence_s)) as frames:
            async for frame in frames:
                match frame:
                    case SentPart(part, data):
                        _settle(reads[part], data, holder)
                    case LackedPart(part, why):
                        _fail([reads[part]], RefusedError(f"{holder} lacks {part}: {why}"))
                    case _:
                        assert_never(frame)

    async def _ask_alone(self, holder: str, read: _Read) -> None:
        data = bytearray()
        answer = self.client.read_part(holder, read.meta, 0, read.meta.length, silence_s=read.silence_s)
        async with aclosing(answer) as chunks:
            async for chunk in chunks:
                data += chunk
        _settle(read, bytes(data), holder)


def _next_group(waiting: deque[_Read]) -> list[_Read]:
    """Take the reads that the next request asks for: as many as it may have, and one at least."""
    group: list[_Read] = []
    size = 0
    while waiting and len(group) < GROUP_PARTS_MAX:
        if not waiting[0].data.done():  # else the part is not wanted any more
            size += waiting[0].meta.length
            if group and size > GROUP_BYTES_MAX:
                break
            group.append(waiting[0])
        waiting.popleft()
    return group


def _settle(read: _Read, data: bytes, holder: str) -> None:
    """End a read by the bytes that came for it."""
    if len(data) != read.meta.length:
        _fail(
            [read],
            CorruptError(
                f"{holder} has another part {read.meta.part}: expected {read.meta.length} bytes,"
                f" found {len(data)}"
            ),
        )
    elif not read.data.done():
        read.data.set_result(data)


def _fail(reads: Sequence[_Read], error: Exception) -> None:
    """End those of the reads that have not ended by an error."""
    for read in reads:
        if not read.data.done():
            read.data.set_exception(error)


def _is_answered(read: _Read) -> bool:
    """Return whether the holder has said something about a part."""
    return read.data.done() and not read.data.cancelled()


def _is_silence(error: Exception) -> bool:
    """Return whether a holder was not reached or did not answer; "standby" is an answer."""
    return isinstance(error, UnavailableError) and not isinstance(error, StandbyError)
