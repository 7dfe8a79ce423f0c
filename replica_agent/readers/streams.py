"""Sends verified parts to clients, and remembers the damaged parts that this process has found."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.errors import BadRequestError, StandbyError
from tidelock.replica_agent.footers import combined, float_hints
from tidelock.replica_agent.footers.combined import CombinedFooter
from tidelock.replica_agent.footers.float_hints import Change
from tidelock.replica_agent.footers.thrift import MAGIC, TAIL_BYTES
from tidelock.replica_agent.readers.catalog import SnapshotCatalog
from tidelock.replica_agent.readers.content import CombinedFile, DamagedPartError, PartFile, Place, Source
from tidelock.replica_agent.readers.counters import ReaderCounters
from tidelock.replica_agent.readers.link import AgentLink
from tidelock.replica_agent.readers.lru import LruCache
from tidelock.replica_agent.readers.outflow import Outflow
from tidelock.replica_agent.readers.pacing import to_read
from tidelock.replica_agent.readers.shapes import Shape
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replication.core.digest import BLOCK_BYTES, blocks_of

#: Number of times that an open follows a part that is being moved to another file.
MOVES_MAX = 3

#: Seconds within which a client that names no offset may hang up before bytes are sent.
HANG_UP_S = 0.002

T = TypeVar("T")
#: Parts, and the columns as which they are shown.
_Key = tuple[tuple[PartId, ...], Shape | None]

#: struct linger: close at once and send RST, so that no client mistakes a partial answer for the whole.
_RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True, kw_only=True, eq=False)
class Streams:
    """Opens parts and sends ranges of them.

    Attributes:
        data_dir: The agent's data directory.
        catalog: For the event loop's thread.
        link: The connection to the agent, to which damage is reported.
        counters: The counters of this process.
        chunk_bytes: Most bytes that are read and verified at a time.
        ahead_bytes: Most bytes of an answer that are under way to a client: the send buffer of its socket.
        threads: Threads that read files; more than cores, since a read of a cold file waits for the disk.
        footers_max: Parts of whose footers it is remembered what readers are shown; also KiB of the footers
            that are made, for combined files and for other columns, and remembered.
    """

    data_dir: Path
    catalog: SnapshotCatalog
    link: AgentLink
    counters: ReaderCounters
    chunk_bytes: int
    ahead_bytes: int
    threads: int
    footers_max: int
    _threads: ThreadPoolExecutor = field(init=False)
    _damaged: dict[PartId, Place] = field(default_factory=dict, init=False)
    _footers: LruCache[PartId, tuple[Change, ...]] = field(init=False)
    _combined: LruCache[_Key, CombinedFooter] = field(init=False)
    _composing: dict[_Key, asyncio.Task[CombinedFooter]] = field(default_factory=dict, init=False)
    _running: int = field(default=0, init=False)
    #: Called when the last running answer has ended.
    on_idle: Callable[[], None] = field(default=lambda: None, init=False)

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(self.threads, "parts")
        self._footers = LruCache(self.footers_max)
        self._combined = LruCache(self.footers_max)

    @property
    def running(self) -> int:
        """The number of answers that are being sent."""
        return self._running

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Count an answer as running during the block."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self.on_idle()

    def released(self, part: PartId) -> None:
        """Forget that a part was found damaged: the agent reports that it is whole."""
        self._damaged.pop(part, None)

    async def send(
        self,
        request: web.Request,
        response: web.StreamResponse,
        parts: Sequence[PartId],
        start: int,
        end: int,
        *,
        at: tuple[Csn, TableId] | None = None,
        shape: Shape | None = None,
        length: int = 0,
        may_hang_up: bool = False,
        pause: bool = False,
    ) -> web.StreamResponse:
        """Answer with bytes [start, end) of a part, or of several as one file.

        Status and headers of ``response`` are the caller's. For a reader ``at`` is the CSN and the table at
        which the parts are visible; without it another replica gets the stored bytes. With ``shape`` the file
        has other columns than it was written with, and ``length`` bytes.

        The first bytes are verified before the status line is sent, so for most damage another replica
        answers, unnoticed by the client. Damage further on cuts the connection before the declared length.
        With ``may_hang_up`` the client has not said how much it wants, and little is sent ahead of what it
        reads. With ``pause`` a client that only wanted the status line has a moment to hang up.

        Raises:
            StandbyError: A part is not whole here, or the process has no file or memory left to read it.
                Nothing was sent.
            BadRequestError: The parts cannot be one file. Nothing was sent.
            SnapshotTooOldError: A part was visible at that CSN, and has been collected since. Not
                "standby", which some settings of readers turn into missing rows. Nothing was sent.
        """
        with self.answering():
            try:
                with contextlib.closing(await self._source(tuple(parts), at, shape, length)) as file:
                    data = await self._read(file, start, end, BLOCK_BYTES)
                    self.counters.add("opens")
                    if len(data) == end - start:
                        response = web.Response(
                            status=response.status, headers=response.headers, body=bytes(data)
                        )
                    else:
                        response.content_length = end - start
                    await self._stream(
                        request, response, file, data, start, end, may_hang_up=may_hang_up, pause=pause
                    )
            except DamagedPartError as error:
                raise self.report(error) from error
            except OSError as error:
                part = parts[-1]
                self.link.log("reader.short", part=part, error=repr(error))
                raise StandbyError(
                    f"part {part} cannot be read on this replica now ({error}); another has it", part=part
                ) from error
        return response

    async def _source(
        self, parts: tuple[PartId, ...], at: tuple[Csn, TableId] | None, shape: Shape | None, length: int
    ) -> Source:
        """Open what is sent: to another replica the stored bytes, to a reader what it is shown."""
        if len(parts) > 1 or shape is not None:
            footer = await self._combined_footer(parts, at, shape, length)
            return CombinedFile(parts, footer, lambda part: self._open(part, at))
        file = self._open(parts[0], at)
        if at is not None:
            try:
                file.show(await self._changes(file))
            except BaseException:
                file.close()
                raise
        return file

    def _open(self, part: PartId, at: tuple[Csn, TableId] | None) -> PartFile:
        for _ in range(MOVES_MAX):
            row = self.catalog.part(part)
            if row is None or row.state != "held" or row.file is None:
                break
            try:
                file = PartFile(self.data_dir, row)
            except DamagedPartError as error:
                if is_same_place(row, self.catalog.part(part)):
                    raise self.report(error) from error
                continue
            if self._damaged.get(part) == file.place:
                file.close()
                break
            self._damaged.pop(part, None)
            return file
        if at is not None:
            with self.catalog.serving(*at):
                pass  # the horizon is noted before a row is deleted
        raise StandbyError(f"part {part} is not whole on this replica now; another has it", part=part)

    async def _changes(self, file: PartFile) -> tuple[Change, ...]:
        """Return the bytes of a part's footer that readers are shown otherwise; the last ones are remembered.

        Raises:
            DamagedPartError: The footer is damaged.
        """
        known = self._footers.get(file.part)
        if known is None:
            try:
                known = await self.in_thread(_find_changes, file)
            except ValueError as error:  # nor can a reader read it
                self.link.log("reader.footer", part=file.part, error=str(error))
                known = ()
            self._footers.put(file.part, known)
        return known

    async def _combined_footer(
        self, parts: tuple[PartId, ...], at: tuple[Csn, TableId] | None, shape: Shape | None, length: int
    ) -> CombinedFooter:
        """Return the footer that is made for parts; the last ones are remembered.

        Raises:
            BadRequestError: They cannot be one file. A listing names none that cannot.
            DamagedPartError, StandbyError: One of them is not whole here.
        """
        key = parts, shape
        if (known := self._combined.get(key)) is not None:
            return known
        if key not in self._composing:
            task = asyncio.create_task(self._compose(parts, at, shape, length))
            self._composing[key] = task
            task.add_done_callback(lambda done: self._composed(key, done))
        # A request that is given up must not end it for the others that wait for it.
        return await asyncio.shield(self._composing[key])

    async def _compose(
        self, parts: tuple[PartId, ...], at: tuple[Csn, TableId] | None, shape: Shape | None, length: int
    ) -> CombinedFooter:
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(contextlib.closing(self._open(part, at))) for part in parts]
            try:
                return await self.in_thread(_compose, files, shape, length)
            except ValueError as error:
                raise BadRequestError(
                    f"the {len(parts)} parts up to {parts[-1]} cannot be one file ({error}); read each by "
                    "its name, or in SQL"
                ) from error

    def _composed(self, key: _Key, done: asyncio.Task[CombinedFooter]) -> None:
        del self._composing[key]
        if not done.cancelled() and done.exception() is None:
            made = done.result()
            self._combined.put(key, made, made.kib)

    async def _read(self, file: Source, start: int, end: int, bytes_max: int) -> memoryview:
        """Return verified bytes from ``start`` on, some of those up to ``end``.

        Most clients read a footer or a column chunk, then hang up. If possible a single block is read without
        a thread: on a busy machine each change of thread waits for a core, and a job over many small parts
        waits for each change.
        """
        if start == end:
            return memoryview(b"")
        span = file.span(start, end)
        data = None
        if min(bytes_max, span.end - span.start) <= BLOCK_BYTES:
            data = span.file.read_cached(span.start, span.end, bytes_max)
        if data is None:
            data = await self.in_thread(span.file.read, span.start, span.end, bytes_max)
        if isinstance(span.file, PartFile):
            self.counters.add("blocks", blocks_of(span.start + len(data)) - span.start // BLOCK_BYTES)
        return data

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        file: Source,
        data: memoryview,
        start: int,
        end: int,
        *,
        may_hang_up: bool,
        pause: bool,
    ) -> None:
        """Send ``data``, which begins at ``start``, and the rest. Any failure now cuts the connection."""
        try:
            await response.prepare(request)
            if isinstance(response, web.Response):  # the whole body, sent together with the status line
                self.counters.add("bytes", len(data))
                start = end
            elif pause:
                await asyncio.sleep(HANG_UP_S)
                if request.transport is None:
                    return
            outflow = Outflow(
                request, response, self.counters, ahead_max=self.ahead_bytes, may_hang_up=may_hang_up
            )
            while start < end:
                await outflow.write(data)
                start += len(data)
                if start < end:
                    await outflow.require_client()
                    data = await self._read(file, start, end, to_read(outflow.sent, self.chunk_bytes))
            await outflow.end()
        except ConnectionError:
            pass  # the client has what it wanted
        except DamagedPartError as error:
            cut(request)
            self.report(error)
        except BaseException as error:
            cut(request)
            self.link.log("reader.cut", part=file.part, error=repr(error))
            if not isinstance(error, Exception):
                raise

    async def in_thread(self, call: Callable[..., T], *args: object) -> T:
        """Run a call that reads files in one of the threads for that."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def report(self, error: DamagedPartError) -> StandbyError:
        """Record and report damage once per location; return the error for the client."""
        if self._damaged.get(error.part) != error.place:
            self._damaged[error.part] = error.place
            self.counters.add("corrupt_blocks")
            self.link.corrupt(error.part, error.detail)
        return StandbyError(f"part {error.part} is damaged on this replica; another has it", part=error.part)


def _find_changes(file: PartFile) -> tuple[Change, ...]:
    """Return the bytes of a file to show otherwise; ValueError if its footer cannot be read."""
    footer = file.footer()
    if footer is None:
        return ()
    begin = file.length - TAIL_BYTES - len(footer)
    return tuple((begin + at, byte) for at, byte in float_hints.changes(footer))


def _compose(files: Sequence[PartFile], shape: Shape | None, length: int) -> CombinedFooter:
    """Return the footer of files as one, perhaps with other columns; ValueError if that cannot be."""
    if len(files) > 1:
        found = combined.combine([(file.length, file.footer() or b"") for file in files])
    else:
        found = _own(files[0])
    return found if shape is None else shape.show(found, length)


def _own(file: PartFile) -> CombinedFooter:
    """Return the footer of one file, without hints that readers are not shown."""
    footer = bytearray(file.footer() or b"")
    for at, byte in float_hints.changes(bytes(footer)):
        footer[at] = byte
    end = bytes(footer) + len(footer).to_bytes(4, "little") + MAGIC
    return CombinedFooter((0, file.length - len(end)), end, file.length)


def is_same_place(asked: PartRow, now: PartRow | None) -> bool:
    """Return whether a part that could not be read at a place is to be there still, so that it is damaged.

    It may be missing only because it was moved or collected between the read of the catalog and the open.
    """
    return now is not None and (now.file, now.offset, now.state) == (asked.file, asked.offset, asked.state)


def cut(request: web.Request) -> None:
    """Close the connection by RST, so that the client's kernel discards the received bytes too."""
    transport = request.transport
    if transport is None:
        return
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
