"""Reads with await: snapshots, scans, the change feed, and the streams that they return."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from tidelock.aio.threads import Call, Threads
from tidelock.aio.twins import Twin, at_once, in_thread
from tidelock.client import (
    BatchStream,
    Changes,
    ChangeSet,
    Progress,
    Rows,
    Scan,
    Snapshot,
    Subscription,
)
from tidelock.errors import RefusedError, UnavailableError

T = TypeVar("T")


class _End(enum.Enum):
    """The mark of the end of a stream, since a thread cannot raise StopIteration."""

    END = enum.auto()


class _Source(Generic[T]):
    """The iterator of a stream, which is opened, read and closed by one thread at a time.

    Args:
        open_items: Returns the iterator.
    """

    def __init__(self, open_items: Callable[[], Iterator[T]]) -> None:
        self._open_items = open_items
        self._lock = threading.Lock()
        self._items: Iterator[T] | None = None
        self._closed = False
        #: The loop that has asked last.
        self.loop: asyncio.AbstractEventLoop | None = None

    @property
    def open(self) -> bool:
        """Return whether something has to be closed."""
        return self._items is not None and not self._closed

    def next(self) -> T | _End:
        """Return the next item, or the mark of the end."""
        with self._lock:
            if self._closed:
                return _End.END
            item = next(self._opened(), _End.END)
            self._closed = item is _End.END
            return item

    def opened(self) -> Iterator[T]:
        """Return the iterator."""
        with self._lock:
            return self._opened()

    def close(self) -> None:
        """Close the iterator; a read that runs ends first."""
        self._closed = True
        with self._lock:
            if (close := getattr(self._items, "close", None)) is not None:
                close()

    def _opened(self) -> Iterator[T]:
        if self._items is None:
            self._items = self._open_items()
        return self._items


class AsyncStream(AsyncIterator[T]):
    """Items for `async for`: a thread reads one when it is asked for, and none ahead.

    The first item opens the stream, so an error in the question is raised there. If a task is cancelled while
    it waits for an item, the thread reads that item nevertheless, and the next `anext` returns it: no item is
    left out. One task reads at a time. After an error each further `anext` raises the same error. `async
    with` or `aclose` abandon the rest; a stream that is read to its end needs neither.
    """

    def __init__(self, threads: Threads, open_items: Callable[[], Iterator[T]]) -> None:
        self._threads = threads
        self._source = _Source(open_items)
        self._reading: Call[T | _End] | None = None
        self._awaited = False
        # A generator that is collected sends requests at its end: not in the thread of the loop.
        weakref.finalize(self, _abandon, threads, self._source).atexit = False

    async def __anext__(self) -> T:
        if self._awaited:
            raise RefusedError("another task waits for the next item of this stream; open one for each task")
        self._source.loop = asyncio.get_running_loop()
        if self._reading is None:
            self._reading = self._threads.start(self._source.next)
        self._awaited = True
        try:
            item = await self._threads.result(self._reading, keep=True)
        finally:
            self._awaited = False
        if isinstance(item, _End):
            raise StopAsyncIteration
        self._reading = None
        return item

    async def aclose(self) -> None:
        """Abandon the rest; harmless when stream or client have ended. A read that runs ends first."""
        if not self._threads.closed and (self._source.open or self._reading is not None):
            await self._threads.run(self._source.close, keep=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _abandon(threads: Threads, source: _Source[Any]) -> None:
    """Close a stream that was collected: by its loop, as memory may be collected while a lock is held."""
    if source.open and source.loop is not None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            source.loop.call_soon_threadsafe(threads.hand_over, source.close)


class AsyncBatchStream(AsyncStream[pa.RecordBatch]):
    """The record batches of one answer, one in memory at a time; errors as `BatchStream`."""

    async def schema(self) -> pa.Schema:
        """Return the schema of the rows."""
        self._source.loop = asyncio.get_running_loop()
        opened = await self._threads.run(self._source.opened)
        assert isinstance(opened, BatchStream), "a scan opens such a stream"
        return opened.schema

    async def read_all(self) -> pa.Table:
        """Return all rows that are left."""
        batches = [batch async for batch in self]
        return pa.Table.from_batches(batches, schema=await self.schema())


class AsyncScan(Twin[Scan]):
    """The rows of a table; every call reads them again. The twin of `Scan`."""

    def to_batches(self) -> AsyncBatchStream:
        """Return a stream of record batches that holds one in memory at a time; nothing is sent yet."""
        return AsyncBatchStream(self._threads, self._twin.to_batches)

    to_table = in_thread(Scan.to_table)
    to_pandas = in_thread(Scan.to_pandas)
    to_polars = in_thread(Scan.to_polars)
    count = in_thread(Scan.count)


class AsyncSnapshot(Twin[Snapshot]):
    """All tables at one CSN, pinned; made by `AsyncDatabase.snapshot`. The twin of `Snapshot`."""

    @property
    def csn(self) -> int:
        """The CSN at which it reads."""
        return self._twin.csn

    @property
    def lease_s(self) -> float:
        """How long the pin outlives the last sign of life of this client."""
        return self._twin.lease_s

    @property
    def holder(self) -> str:
        """The replica that holds the pin."""
        return self._twin.holder

    @property
    def closed(self) -> bool:
        """Whether the snapshot was closed."""
        return self._twin.closed

    @property
    def root(self) -> str:
        """The folder of all tables at this CSN, on the replica that holds the pin."""
        return self._twin.root

    tables = in_thread(Snapshot.tables)
    table = in_thread(Snapshot.table)
    parts = in_thread(Snapshot.parts)
    path = in_thread(Snapshot.path)
    read = in_thread(Snapshot.read)
    export = in_thread(Snapshot.export)
    scan = at_once(Snapshot.scan, AsyncScan)
    sql = in_thread(Snapshot.sql)

    def leave(self) -> None:
        """End this object and leave the pin until its lease ends, as `Snapshot.leave`; nothing is sent."""
        self._twin.leave()

    async def close(self) -> None:
        """Release the pin; harmless when it was closed. After the client is closed the pin ends by itself."""
        if not self._threads.closed:
            await self._threads.run(self._twin.close, keep=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncChanges(Twin[Changes]):
    """The changes of a table; made by `AsyncDatabase.changes`. The twin of `Changes`."""

    @property
    def table(self) -> str:
        """Name of the table."""
        return self._twin.table

    @property
    def net(self) -> bool:
        """Whether it is the difference of two snapshots; see `Changes`."""
        return self._twin.net

    @property
    def from_csn(self) -> int:
        """CSN after which the changes begin."""
        return self._twin.from_csn

    @property
    def to_csn(self) -> int | None:
        """CSN up to which the changes go; see `Changes`."""
        return self._twin.to_csn

    page = in_thread(Changes.page)
    to_table = in_thread(Changes.to_table)

    def sets(self, *, files_max: int | None = None, bytes_max: int | None = None) -> AsyncStream[ChangeSet]:
        """Return a stream of all change sets in the order of their CSNs; see `Changes.page`."""
        opened = partial(self._twin.sets, files_max=files_max, bytes_max=bytes_max)
        return AsyncStream(self._threads, opened)

    def to_batches(self) -> AsyncStream[pa.RecordBatch]:
        """Return a stream of the changed rows in the order of their CSNs; see `Changes.to_batches`."""
        return AsyncStream(self._threads, self._twin.to_batches)

    async def close(self) -> None:
        """Release the pin that keeps the parts readable; as `AsyncSnapshot.close`."""
        if not self._threads.closed:
            await self._threads.run(self._twin.close, keep=True)

    async def __aenter__(self) -> Self:
        await self._threads.run(self._twin.__enter__, undo=Changes.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Messages(AsyncStream[Rows | Progress]):
    """The messages of a subscription, which goes on after a time without an answer."""

    async def __anext__(self) -> Rows | Progress:
        try:
            return await super().__anext__()
        except UnavailableError:
            self._reading = None
            raise


class AsyncSubscription(Twin[Subscription], AsyncIterator[Rows | Progress]):
    """The messages of a subscription; made by `AsyncDatabase.subscribe`. The twin of `Subscription`.

    A thread of the client waits while the next message is awaited, and none in between. A message whose
    `anext` was cancelled is returned by the next one.
    """

    def __init__(self, threads: Threads, twin: Subscription) -> None:
        super().__init__(threads, twin)
        self._messages = _Messages(threads, lambda: twin)

    @property
    def table(self) -> str:
        """Full name of the table."""
        return self._twin.table

    @property
    def as_of(self) -> int:
        """The CSN where it began."""
        return self._twin.as_of

    @property
    def position(self) -> str | None:
        """Where a later subscription can go on; see `Subscription.position`."""
        return self._twin.position

    @property
    def closed(self) -> bool:
        """Whether the subscription was closed, has ended, or has failed for good."""
        return self._twin.closed

    async def __anext__(self) -> Rows | Progress:
        return await self._messages.__anext__()

    async def close(self) -> None:
        """End the subscription and release its pin; as `AsyncSnapshot.close`."""
        if not self._threads.closed:
            await self._threads.run(self._twin.close, keep=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
