"""One life of an agent's process: everything that ends with it when it is killed.

Tasks know their life by the context that they inherit. A killed process does nothing more: its tasks are
cancelled, and what they still do while they end reaches nobody, since each of its borders (ZooKeeper,
network, catalog, files) asks whether the life goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tidelock.replica_agent.lifecycle.agent import Agent

#: The life in whose name something runs; there is none for clients and for the simulation itself.
LIFE: contextvars.ContextVar[AgentLife] = contextvars.ContextVar("life")


class AgentLife:
    """A process of a host.

    Attributes:
        agent: Once it has been made.
        dead: Set when it is killed.
        frozen: It takes no step: neither answers nor timers reach it. It finds all of them when it goes on.
        on_kill: What else ends then.
    """

    def __init__(self, host: Host, number: int) -> None:
        self.host = host
        self.number = number
        self.agent: Agent | None = None
        self.dead = False
        self.frozen = False
        self._held: list[asyncio.Handle] = []
        self.on_kill: list[Callable[[], None]] = []
        self._tasks: dict[asyncio.Task[object], None] = {}
        self.context = contextvars.copy_context()
        self.context.run(LIFE.set, self)

    def adopt(self, task: asyncio.Task[object]) -> None:
        """Take a new task of this life."""
        if self.dead:
            task.cancel()
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def hold(self, handle: asyncio.Handle) -> bool:
        """Keep a callback of this life until it goes on; False if it is not frozen."""
        if self.frozen:
            self._held.append(handle)
        return self.frozen

    def thaw(self) -> list[asyncio.Handle]:
        """SIGCONT: return what came and what became due meanwhile, in its order."""
        self.frozen, held, self._held = False, self._held, []
        return held

    def kill(self) -> None:
        """SIGKILL, or a power cut. A frozen process takes no more steps: its tasks only end."""
        self.dead = True
        for end in self.on_kill:
            end()
        for task in list(self._tasks):
            task.cancel()
