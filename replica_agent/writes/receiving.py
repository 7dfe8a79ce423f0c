"""From the body of an upload to a durable file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import ParamSpec, TypeVar

from aiohttp import web

from tidelock.errors import BadRequestError
from tidelock.replication.model import Location
from tidelock.replication.partfs import BUFFER_BYTES, PartSink

P = ParamSpec("P")
T = TypeVar("T")


async def receive(content: AsyncIterator[bytes], sink: PartSink, grown: Callable[[int], None]) -> Location:
    """Write a body in pieces worth a thread's turn; if it raises, nothing of the file is left.

    Args:
        content: The body.
        sink: Takes it.
        grown: Told the bytes that the file has now; raises when they are too many.

    Raises:
        BadRequestError: The body was cut.
        DiskFullError, UnavailableError: As :class:`PartSink`.
    """
    try:
        pieces: list[bytes] = []
        size = 0
        async for piece in content:
            pieces.append(piece)
            size += len(piece)
            if size >= BUFFER_BYTES:
                await _to_the_end(sink.write, b"".join(pieces))
                pieces, size = [], 0
                grown(sink.length)
        if pieces:
            await _to_the_end(sink.write, b"".join(pieces))
            grown(sink.length)
        return await _to_the_end(sink.finish)
    except BaseException as error:
        await _to_the_end(sink.abandon)
        if isinstance(error, web.RequestPayloadError | ConnectionError):
            raise BadRequestError("the file was cut on its way; nothing of it was kept") from error
        raise


async def _to_the_end(call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Run a blocking call in a thread; who is cancelled meanwhile goes on when that has ended.

    Else a file would be discarded while a thread still writes, or renames, it.
    """
    work = asyncio.ensure_future(asyncio.to_thread(call, *args, **named))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
