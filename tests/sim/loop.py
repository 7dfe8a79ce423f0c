"""An event loop with virtual time: when nothing is ready, its clock jumps to the next timer.

Nothing in it depends on the machine: futures and tasks hash by their number of creation and not by their
address, so that a set of them has the same order in every run, and a call that the product hands to a thread
is given to a hook that runs it in the loop at a moment of its choice.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, Final

#: Seconds on the clock at the start of each run; any number but 0, which product code may take for "never".
START_S: Final = 1000.0


class StandstillError(RuntimeError):
    """The loop has no ready task and no timer: all tasks wait for each other."""


class HorizonError(RuntimeError):
    """The virtual time that a run may take is over."""


class _Numbers:
    """Numbers for the objects of the running simulation."""

    counter = itertools.count()


class SimFuture(asyncio.Future[Any]):
    """A future whose hash is the same in every run."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._number = next(_Numbers.counter)

    def __hash__(self) -> int:
        return self._number


class SimTask(asyncio.Task[Any]):
    """A task whose hash is the same in every run."""

    def __init__(self, coro: Any, **options: Any) -> None:
        self._number = next(_Numbers.counter)  # first: the construction puts the task into a set
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class _Selector:
    """Stands for the network of the base class: it only lets time pass."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout_s: float | None) -> list[Any]:
        """Let time jump to the next timer."""
        if timeout_s is None:
            raise StandstillError("nothing is ready and no timer runs")
        self._loop.advance(timeout_s)
        return []

    def close(self) -> None:
        """Do nothing: no socket is open."""


class _Ready(deque[asyncio.Handle]):
    """The callbacks that are due; those of a frozen process are left out when their turn comes."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._loop = loop
        self._nothing = asyncio.Handle(lambda: None, (), loop)
        self._nothing.cancel()

    def popleft(self) -> asyncio.Handle:
        """Return the next one, or one that does nothing."""
        handle = super().popleft()
        return self._nothing if self._loop.holds(handle) else handle


class SimLoop(base_events.BaseEventLoop):
    """The loop.

    Args:
        blocking: Takes each call that was meant for a thread: the call, and the future of its result.
        horizon_s: So much virtual time may pass; :class:`HorizonError` after it.
    """

    def __init__(self, blocking: Callable[[Callable[[], Any], SimFuture], None], horizon_s: float) -> None:
        super().__init__()
        self._now_s = START_S
        self._horizon_s = START_S + horizon_s
        self._selector = _Selector(self)
        self._ready = _Ready(self)
        #: Takes a callback that is due in a frozen process, until it is released; False: it runs.
        self.holds: Callable[[asyncio.Handle], bool] = lambda _handle: False
        self._blocking = blocking
        self.set_task_factory(self._make_task)
        _Numbers.counter = itertools.count()
        #: Called with every new task and its context.
        self.on_task: Callable[[SimTask, contextvars.Context], None] = lambda _task, _context: None

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds
        if self._now_s > self._horizon_s:
            raise HorizonError(f"the run has taken {self._now_s - START_S:.0f} s of virtual time")

    def extend(self, seconds: float) -> None:
        """Let the run take so much longer from now on, whatever was its horizon."""
        self._horizon_s = self._now_s + seconds

    def release(self, held: Iterable[asyncio.Handle]) -> None:
        """Let callbacks run that had to wait, in their order."""
        self._ready.extend(held)

    def create_future(self) -> SimFuture:
        """Make a future."""
        return SimFuture(loop=self)

    def run_in_executor(self, _executor: Any, func: Callable[..., Any], *args: Any) -> SimFuture:  # type: ignore[override]
        """Run what would block, in the loop and at the moment that the hook chooses."""
        future = self.create_future()
        self._blocking(lambda: func(*args), future)
        return future

    def _make_task(
        self,
        _loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        context: contextvars.Context | None = None,
    ) -> SimTask:
        if context is None:  # an empty one is false
            context = contextvars.copy_context()
        task = SimTask(coro, loop=self, context=context)
        self.on_task(task, context)
        return task

    def add_signal_handler(self, *_: Any) -> None:  # type: ignore[override]
        """Signals do not come here."""

    def _process_events(self, event_list: list[Any]) -> None:
        """No network, no events."""

    def _write_to_self(self) -> None:
        """Do nothing: no thread waits in a system call."""
