"""The pieces of which the classes with await are made: each has a synchronous twin, which does the work.

A method of such a class is made from that of its twin, so its arguments, defaults and documentation are the
same, for people, `help()` and type checkers. tests/unit/client/test_aio_twins.py holds the two sets together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from tidelock.aio.threads import Threads

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class Twin(Generic[S_co]):
    """An object whose synchronous twin does the work, in the threads of its client."""

    def __init__(self, threads: Threads, twin: S_co) -> None:
        self._threads = threads
        self._twin = twin

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._twin!r}>"


class Entered(Protocol):
    """An object that `async with` ends."""

    async def __aenter__(self) -> Self:
        """Return the object."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """End it."""


A = TypeVar("A", bound=Entered)
B = TypeVar("B")


class Opening(Generic[A]):
    """An object of the client that is opened when it is awaited, or entered with `async with`; once."""

    def __init__(self, opening: Coroutine[Any, Any, A]) -> None:
        self._opening = opening

    def __await__(self) -> Generator[Any, Any, A]:
        return self._opening.__await__()

    async def __aenter__(self) -> A:
        self._opened = await self._opening
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)


def in_thread(
    method: Callable[Concatenate[S, P], R], *, keep: bool = False
) -> Callable[Concatenate[Twin[S], P], Coroutine[Any, Any, R]]:
    """Return a method that runs that of the twin in a thread; `keep` as in `Threads.run`."""

    @functools.wraps(method)
    async def call(self: Twin[S], /, *args: P.args, **named: P.kwargs) -> R:
        return await self._threads.run(functools.partial(method, self._twin, *args, **named), keep=keep)

    return call


def at_once(
    method: Callable[Concatenate[S, P], R], made: Callable[[Threads, R], B]
) -> Callable[Concatenate[Twin[S], P], B]:
    """Return a method that calls that of the twin at once, which must send nothing, and wraps its result."""

    @functools.wraps(method)
    def call(self: Twin[S], /, *args: P.args, **named: P.kwargs) -> B:
        return made(self._threads, method(self._twin, *args, **named))

    return call


def opens(
    method: Callable[Concatenate[S, P], R],
    made: Callable[[Threads, R], A],
    *,
    undo: Callable[[R], object] | None = None,
) -> Callable[Concatenate[Twin[S], P], Opening[A]]:
    """Return a method whose result is opened in a thread, wrapped, and undone if its task is cancelled."""

    @functools.wraps(method)
    def call(self: Twin[S], /, *args: P.args, **named: P.kwargs) -> Opening[A]:
        async def opening() -> A:
            run = self._threads.run(functools.partial(method, self._twin, *args, **named), undo=undo)
            return made(self._threads, await run)

        return Opening(opening())

    return call
