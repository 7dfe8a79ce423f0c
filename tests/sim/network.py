"""The network between hosts and clients: requests that are slow, lost, cut off, or delivered twice.

A request that was lost is a silence until the caller's timeout; a process that is gone is a refused or broken
connection. Nothing is carried back from a life that was killed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.sim.life import LIFE, AgentLife
from tests.sim.trace import Trace
from tidelock.errors import TidelockError, UnavailableError

#: The work of a request, given the object that answers at its door.
Serve = Callable[[Any], Awaitable[Any]]


class Door(Enum):
    """An address of an agent; each opens at its own time of a start."""

    #: Answers with its services, from when it follows the log on.
    API = "API"
    #: Answers with its catalog and its files, from when they are open on.
    DATA = "data"


class SilentError(UnavailableError):
    """No answer: the request may have been carried out."""


class RefusedConnectionError(UnavailableError):
    """No process listens there: the request was certainly not carried out."""


@dataclass
class Weather:
    """How the network is now; times in seconds."""

    delay_s: float = 0.0005
    #: Share of messages that are lost, each way.
    loss: float = 0.0
    #: Share of messages between replicas that come a second time, up to :attr:`late_s` later.
    twice: float = 0.0
    #: Share of messages that come up to :attr:`late_s` late.
    late: float = 0.0
    late_s: float = 3.0
    #: Delay factor by host.
    slow: dict[str, float] = field(default_factory=dict)
    #: Pairs of which the first does not reach the second.
    cut: set[tuple[str, str]] = field(default_factory=set)


class Network:
    """All connections.

    Args:
        unforeseen: Told of an error that a request must not end with.
    """

    def __init__(
        self, chance: random.Random, trace: Trace, unforeseen: Callable[[str, BaseException], None]
    ) -> None:
        self.weather = Weather()
        self._chance = chance
        self._trace = trace
        self._unforeseen = unforeseen
        self._listening: dict[tuple[str, Door], tuple[AgentLife, Any]] = {}
        #: The requests that each life is answering.
        self._running: dict[AgentLife, dict[asyncio.Task[Any], None]] = {}

    def listen(self, door: Door, answering: Any) -> None:
        """Let the present life answer at a door of its host.

        Args:
            door: The door.
            answering: What the requests that arrive there are served by.
        """
        life = LIFE.get()
        if not life.dead:
            self._listening[life.host.name, door] = (life, answering)
            life.on_kill.append(lambda: self.close(door, life))

    def close(self, door: Door, life: AgentLife) -> None:
        """Let a life answer no more; a later one of its host may do so already."""
        found = self._listening.get((life.host.name, door))
        if found is not None and found[0] is life:
            del self._listening[life.host.name, door]

    def refuses(self, src: str, dst: str) -> bool:
        """Return whether no life answers at an API, as far as a machine that reaches that host can see."""
        return (dst, Door.API) not in self._listening and (src, dst) not in self.weather.cut

    async def drain(self, life: AgentLife, timeout_s: float) -> None:
        """Let what runs at a life end, or end it."""
        running = self._running.pop(life, {})
        if running:
            await asyncio.wait(running, timeout=timeout_s)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def call(
        self,
        src: str,
        dst: str,
        what: str,
        serve: Serve,
        *,
        timeout_s: float,
        twice: bool = False,
        door: Door = Door.API,
    ) -> Any:
        """Have ``serve`` run at another host; its result or its TidelockError comes back.

        Messages between replicas may come twice, and those of a client if it says so (``twice``).

        Raises:
            SilentError, RefusedConnectionError: As they say.
        """
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._trace.note("call", src, dst, what)
        self._carry(src, dst, lambda: self._arrive(src, (dst, door), what, serve, reply))
        if (twice or not src.startswith("c")) and self._chance.random() < self.weather.twice:
            lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._later(
                self._chance.uniform(0, self.weather.late_s),
                lambda: self._arrive(src, (dst, door), f"{what} again", serve, lost),
            )
        try:
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            raise SilentError(f"{dst} does not answer {what} within {timeout_s} s") from None

    def cut_off(self, length: int) -> int:
        """Return how many bytes of an answer arrive before its connection breaks; mostly all of them.

        A long answer breaks as often as a message is lost.
        """
        broken = self._chance.random() < self.weather.loss
        return self._chance.randrange(length + 1) if broken else length

    def _carry(self, src: str, dst: str, deliver: Callable[[], None]) -> None:
        weather = self.weather
        if (src, dst) in weather.cut or self._chance.random() < weather.loss:
            self._trace.note("lost", src, dst)
            return
        factor = max(weather.slow.get(src, 1.0), weather.slow.get(dst, 1.0))
        delay_s = weather.delay_s * factor * self._chance.uniform(0.5, 2.0)
        if self._chance.random() < weather.late:
            delay_s += self._chance.uniform(0, weather.late_s)
        self._later(delay_s, deliver)

    @staticmethod
    def _later(delay_s: float, deliver: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_s, deliver)

    def _arrive(
        self, src: str, at: tuple[str, Door], what: str, serve: Serve, reply: asyncio.Future[Any]
    ) -> None:
        dst, found = at[0], self._listening.get(at)
        if found is None:
            error = RefusedConnectionError(f"nobody listens at {dst}")
            self._carry(dst, src, lambda: _end(reply, error=error))
            return
        life, answering = found
        self._trace.note("serve", src, dst, what)
        work = _awaited(serve(answering))
        task = asyncio.get_running_loop().create_task(work, context=life.context.copy())
        running = self._running.setdefault(life, {})
        running[task] = None
        task.add_done_callback(running.pop)
        task.add_done_callback(lambda done: self._answer(src, dst, what, done, reply))

    def _answer(
        self, src: str, dst: str, what: str, done: asyncio.Task[Any], reply: asyncio.Future[Any]
    ) -> None:
        if done.cancelled():
            broken = SilentError(f"{dst} broke the connection")
            self._carry(dst, src, lambda: _end(reply, error=broken))
            return
        error = done.exception()
        if error is not None and not isinstance(error, TidelockError):
            self._unforeseen(f"{what} at {dst}", error)
            error = SilentError(f"{dst} failed: {error!r}")
        self._trace.note("answer", dst, src, what, type(error).__name__ if error else "ok")
        result = None if error else done.result()
        self._carry(dst, src, lambda: _end(reply, result, error))


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


def _end(reply: asyncio.Future[Any], result: Any = None, error: BaseException | None = None) -> None:
    if reply.done():
        return
    if error is None:
        reply.set_result(result)
    else:
        reply.set_exception(error)
        reply.exception()  # a reply that nobody waits for any more is no error
