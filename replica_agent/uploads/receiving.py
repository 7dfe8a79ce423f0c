"""Writes the body of an upload to a durable file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, ParamSpec, TypeVar

from aiohttp import web

from tidelock.errors import BadRequestError, UnavailableError
from tidelock.replication.core.model import Location
from tidelock.replication.partfs import BUFFER_BYTES, PartSink

P = ParamSpec("P")
T = TypeVar("T")

#: The threads wait for the disk most of the time.
_THREADS: Final = 4


@dataclass(slots=True, eq=False, repr=False)
class UploadReceiver:
    """Receives bodies in separate threads, so that large files do not delay commits.

    No timeout ends a body that pauses: Spark sends nothing while it fills a row group, which may take any
    time. The body ends with its transaction or its connection.

    Attributes:
        uploads_max: Most concurrent bodies; each needs up to three times ``BUFFER_BYTES``.
    """

    uploads_max: int
    _running: int = field(default=0, init=False)
    _threads: ThreadPoolExecutor = field(
        default_factory=partial(ThreadPoolExecutor, _THREADS, thread_name_prefix="upload"), init=False
    )

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def receive(
        self, content: AsyncIterator[bytes], sink: PartSink, grown: Callable[[int], None]
    ) -> Location:
        """Write a body in pieces that are worth a call of a thread; on an error no byte of the file is left.

        Args:
            content: The body.
            sink: Writes the body.
            grown: Called with the present length of the file; raises when no more of it is wanted.

        Raises:
            BadRequestError: The body was cut.
            DiskFullError, UnavailableError: As :class:`PartSink`; or ``uploads_max`` bodies arrive already.
        """
        self._running += 1
        try:
            self._require_room()
            pieces: list[bytes] = []
            size = 0
            async for piece in content:
                pieces.append(piece)
                size += len(piece)
                if size >= BUFFER_BYTES:
                    await self.run(sink.write, b"".join(pieces))
                    pieces, size = [], 0
                    grown(sink.length)
            if pieces:
                await self.run(sink.write, b"".join(pieces))
                grown(sink.length)
            return await self.run(sink.finish)
        except BaseException as error:
            await self.run(sink.abandon)
            if isinstance(error, web.RequestPayloadError | ConnectionError):
                raise BadRequestError(
                    "the connection ended before the file did; nothing of the file was kept"
                ) from error
            raise
        finally:
            self._running -= 1

    def _require_room(self) -> None:
        if self._running > self.uploads_max:
            raise UnavailableError(
                f"{self.uploads_max} files are being written to this replica (uploads_max); nothing of this "
                "one was kept: write fewer at once, or try again"
            )

    async def run(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run a blocking call in a thread; a caller that is cancelled meanwhile waits for its end.

        Otherwise a file could be discarded while a thread still writes or renames it.
        """
        loop = asyncio.get_running_loop()
        work = asyncio.ensure_future(loop.run_in_executor(self._threads, partial(call, *args, **named)))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise
