"""The threads in which the calls of the synchronous client run, and what becomes of a call nobody waits for.

A call that a thread has begun goes on to its end, also when the task that waits for it is cancelled: a
request that has left cannot be called back, and its outcome is looked for as ever. A call that waits for a
thread when its task is cancelled is never made. A call that has opened something for a task that has left
undoes it.

Nothing here belongs to an event loop, so any number of loops may use one client, one after the other or in
several threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from tidelock.client.agents import forks
from tidelock.errors import BadRequestError, RefusedError, TidelockError

T = TypeVar("T")

#: Calls of one client that run at the same time, unless `connect` is told another number.
THREADS_MAX: Final = 16
#: How long `close` waits for calls that run, in seconds, unless `connect` is told another time.
CLOSE_TIMEOUT_S: Final = 60.0
#: The names of the threads begin with it.
NAME: Final = "tidelock-aio"

#: Programs configure it by this name, wherever the module lies.
_log = logging.getLogger("tidelock.aio")


class Call(Generic[T]):
    """One call in a thread, in a copy of the context variables of the task that makes it.

    Args:
        call: The call.
        undo: Undoes its result if the task has left; an error of Tidelock is then the end of it, since leases
            end what nobody has ended.
    """

    job: Future[T]

    def __init__(self, call: Callable[[], T], undo: Callable[[T], object] | None) -> None:
        self._call, self._undo = call, undo
        self._context = contextvars.copy_context()
        #: The thread takes it when it has a result, and the task when it leaves. The first one has decided
        #: which of them answers for the result.
        self._settled = threading.Lock()

    def run(self) -> T:
        """Make the call; for the thread."""
        result = self._context.run(self._call)
        if not self._settled.acquire(blocking=False):
            self._give_back(result)
        return result

    def leave(self) -> Callable[[], None] | None:
        """Leave the result to the thread; return the rest of its work if the result exists already."""
        if self._settled.acquire(blocking=False) or self._undo is None:
            return None
        return lambda: self._give_back(self.job.result())

    def _give_back(self, result: T) -> None:
        if self._undo is not None:
            with contextlib.suppress(TidelockError):
                self._undo(result)


class Threads:
    """The threads of one client; they start when they are needed.

    Args:
        threads_max: Calls that run at the same time. Further ones wait for their turn, first come, first
            served; each of them is a task of the program that waits.
        close_timeout_s: How long `close` waits for calls.

    Raises:
        BadRequestError: One of them is out of range.
    """

    def __init__(self, threads_max: int, close_timeout_s: float) -> None:
        if threads_max < 1 or close_timeout_s < 0:
            raise BadRequestError(
                "expected threads_max of at least 1 and close_timeout_s of at least 0 s; found "
                f"threads_max={threads_max}, close_timeout_s={close_timeout_s}"
            )
        self._threads_max = threads_max
        self._close_timeout_s = close_timeout_s
        self.closed = False
        self._open()
        forks.register(self)

    def _open(self) -> None:
        self._executor = ThreadPoolExecutor(self._threads_max, thread_name_prefix=NAME)
        self._calls: dict[Future[Any], Call[Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for another process, which has threads of its own."""
        return Threads, (self._threads_max, self._close_timeout_s)

    def after_fork(self) -> None:
        """Leave the threads and their calls to the parent."""
        self._open()

    async def run(
        self, call: Callable[[], T], *, undo: Callable[[T], object] | None = None, keep: bool = False
    ) -> T:
        """Make a call in a thread and return its result; its errors are raised unchanged.

        Args:
            call: The call.
            undo: If the task is cancelled, undoes what the call has opened, in a thread.
            keep: Make the call even if the task is cancelled before a thread takes it.

        Raises:
            RefusedError: The client is closed; the call was not made.
        """
        return await self.result(self.start(call, undo=undo), keep=keep)

    def start(self, call: Callable[[], T], *, undo: Callable[[T], object] | None = None) -> Call[T]:
        """Hand a call to the threads; RefusedError if the client is closed."""
        if self.closed:
            raise _closed()
        return self._start(Call(call, undo))

    def hand_over(self, call: Callable[[], object]) -> None:
        """Have a thread make a call that nobody waits for; nothing happens if the threads have ended."""
        with contextlib.suppress(RuntimeError):  # of the executor
            self._start(Call(call, None))

    def _start(self, call: Call[T]) -> Call[T]:
        # The queue of the executor keeps what is cancelled until a thread is free: only this, and no rows.
        call.job = self._executor.submit(_run, weakref.ref(call))
        self._calls[call.job] = call
        call.job.add_done_callback(lambda job: self._calls.pop(job, None))
        return call

    async def result(self, call: Call[T], *, keep: bool = False) -> T:
        """Wait for a call that was started; see `run`."""
        try:
            await _end_of(call.job)
            if call.job.cancelled():
                raise _closed()
            return call.job.result()
        except asyncio.CancelledError:
            if not keep and not call.job.cancel() and (rest := call.leave()):
                self.hand_over(rest)
            raise
        finally:
            del call  # an error would keep this frame, and the frame the error

    async def close(self) -> None:
        """Begin no further call, and wait for those that were begun, for at most `close_timeout_s`.

        Calls that still wait for a thread then are refused. Those that run go on to their end, which this
        process waits for before it ends; a line of the log counts them.
        """
        self.closed = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._close_timeout_s):
                    while jobs := list(self._calls):
                        await _end_of(jobs[0])
        finally:
            self.end()
            if self._calls:
                _log.warning(
                    "%d calls still run %g s after close(); the process ends when they have ended",
                    len(self._calls),
                    self._close_timeout_s,
                )

    def end(self) -> None:
        """End the threads: at once if no call runs, else each after its call. Calls that wait are refused."""
        self.closed = True
        self._executor.shutdown(wait=not self._calls, cancel_futures=True)


def _closed() -> RefusedError:
    return RefusedError("this program has closed the client, so the call was not made; connect again")


def _run(ref: weakref.ref[Call[T]]) -> T:
    call = ref()
    assert call is not None, "a call exists until it has ended or was cancelled"
    return call.run()


async def _end_of(job: Future[Any]) -> None:
    """Wait until a call has ended, without a look at its result."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ended.done():
            ended.set_result(None)

    def tell(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the task that has waited
            loop.call_soon_threadsafe(wake)

    job.add_done_callback(tell)
    await ended
