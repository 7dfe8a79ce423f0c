"""The operator of a run, who lets members come and go by the service behind POST /admin/members.

He asks any agent that stays, and repeats the request until it was answered for certain: an answer may be
lost, and a message may come twice. What the product refuses is left as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from tests.sim.clients import SimWriter
from tests.sim.network import Serve
from tidelock.errors import BadRequestError, MembershipError, TidelockError
from tidelock.replica_agent.config.states import AgentState
from tidelock.wire.members import MembersRequest

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.world import SimWorld

#: So long the operator waits for an answer, and for the end of a drain (virtual seconds).
_ANSWER_S: Final = 4.0
_DRAINED_S: Final = 20.0
#: So long a machine whose replica will be removed is down before.
_DOWN_S: Final = 3.0
#: Virtual seconds after the faults in which every change that was begun has been answered.
SETTLED_S: Final = 60.0
_LOOK_S: Final = 0.2
#: So long the first client of a new replica waits until that serves.
_SERVES_S: Final = 20.0


class SimOperator:
    """Changes of the members, each a task of its own: an answer may not come before all is healed."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._chance = world.chance("operator")
        self._work: list[asyncio.Task[None]] = []

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin a change, which goes on for as long as it takes."""
        self._work.append(asyncio.create_task(work))
        return self._work[-1]

    async def settle(self) -> None:
        """Wait for all changes that were begun, and take back the drains that nobody needs any more (I14)."""
        until_s = self._world.loop.time() + SETTLED_S
        if self._work:
            done, late = await asyncio.wait(self._work, timeout=SETTLED_S)
            for task in done:
                task.result()
            if late:
                what = f"{len(late)} changes of the members are not answered {SETTLED_S:.0f} s after"
                self._world.oracle.violated("I14 LIVE", what)
        for replica in self._world.oracle.roster.draining:
            while await self._asked(change="drain", replica=replica, undo=True):
                if self._world.loop.time() > until_s:
                    break

    def fill_up(self, given: Sequence[Host]) -> None:
        """Begin to add replicas in place of those whose catalogs were not given to a rebuild."""
        for _ in range(self._world.plan.replicas - len(given)):
            self.begin(self.add())
        if len(given) < self._world.plan.copies:
            self.begin(self._raise_copies())

    async def _raise_copies(self) -> None:
        """Have a commit need as many copies as before, as soon as there are so many replicas."""
        while await self._asked(change="copies", copies=self._world.plan.copies) is not None:  # noqa: ASYNC110
            await asyncio.sleep(1.0)

    async def add(self) -> None:
        """Start an agent under a new id, and register it."""
        host = self._world.add_machine()
        if refused := await self._asked(change="add", replica=host.replica):
            self._world.oracle.violated("I14 LIVE", f"{host.name} is not added: {refused.message}")
        else:
            self.begin(self._first_client(host))
            self.begin(self._emptied(host))

    async def _emptied(self, host: Host) -> None:
        """Give a new replica an empty disk if it asks for one.

        It was registered, had its catalog, and ZooKeeper's tree was made again without it before the operator
        had his answer; so he has asked once more, and its catalog is of the cluster before.
        """
        until_s = self._world.loop.time() + _SERVES_S
        while self._world.loop.time() < until_s and not host.serving:
            if host.of_another:
                self._world.trace.note("emptied", host.name)
                host.crash(power=False, replace=True)
                return
            await asyncio.sleep(_LOOK_S)

    async def _first_client(self, host: Host) -> None:
        """Have a client that knows no CSN write at a new replica as soon as that serves."""
        until_s = self._world.loop.time() + _SERVES_S
        while self._world.loop.time() < until_s:
            if host.serving:
                await SimWriter(self._world, f"c-first-{host.name}").write_at(host.name)
                return
            await asyncio.sleep(_LOOK_S)

    async def remove(self, host: Host, *, new: bool = False) -> None:
        """Remove a replica for good, and register a new one in the same step if that is asked for.

        The replica is drained and stopped before, or it is dead, or it lives and hears of it by its fence.
        Where that is refused, it goes on. The id of a removed one is tried again, and its agent is started.
        """
        replica, how = host.replica, self._chance.choice(["drained", "dead", "alive"])
        self._world.trace.note("removes", replica, how)
        if how == "drained":
            if await self._asked(change="drain", replica=replica) is not None:
                self._world.oracle.did["change refused"] += 1
                return
            await self._drained(host)
        if how != "alive":
            host.may_run.clear()
            if how == "dead":
                host.crash(power=False)
            else:
                host.stop()
            await asyncio.sleep(_DOWN_S)
        if new:
            fresh = self._world.add_machine()
            refused = await self._asked(change="replace", replica=replica, new=fresh.replica)
            fresh.retired = refused is not None
            if refused is None:
                self.begin(self._emptied(fresh))
        else:
            refused = await self._asked(change="remove", replica=replica)
        if refused is not None:
            self._world.oracle.did["change refused"] += 1
            if how == "drained":
                await self._asked(change="drain", replica=replica, undo=True)
        else:
            await self._is_gone_for_good(replica)
        host.may_run.set()

    async def _is_gone_for_good(self, replica: str) -> None:
        """Register a removed id once more: refused, unless ZooKeeper forgot its removal meanwhile."""
        logs = self._world.oracle.logs
        removed_in = logs.now
        if await self._asked(change="add", replica=replica) is None and logs.now is removed_in:
            what = f"{replica} was removed, and is registered again"
            self._world.oracle.violated("I1 UNIQUE", what)

    async def _drained(self, host: Host) -> None:
        """Wait as `tidelock admin replica drain` does, for at most a while."""
        until_s = self._world.loop.time() + _DRAINED_S
        while self._world.loop.time() < until_s and not self._is_drained(host):  # noqa: ASYNC110 - a look
            await asyncio.sleep(_LOOK_S)

    def _is_drained(self, host: Host) -> bool:
        agent = host.agent
        if agent is None or agent.condition.state is not AgentState.DRAINING:
            return False
        reached = agent.local.waiters.reached
        others = [other.agent for other in self._world.hosts if other is not host and other.serving]
        behind = self._world.oracle.roster.copies - sum(
            one.local.waiters.reached >= reached for one in others if one is not None
        )
        return not list(agent.parts.transactions.registry.live()) and behind <= 0

    async def _asked(self, **wish: Any) -> TidelockError | None:
        """Ask until it was answered for certain; return the error of a refusal."""
        world, request = self._world, MembersRequest(**wish)
        serve: Serve = lambda at: at.members.change(request)  # noqa: E731 - a name for what is asked
        while True:
            homes = [host.name for host in world.hosts if host.replica != request.replica] or [
                host.name for host in world.hosts
            ]
            home = self._chance.choice(homes)
            try:
                await world.network.call("operator", home, request.change, serve, timeout_s=_ANSWER_S)
            except (MembershipError, BadRequestError) as error:
                world.trace.note("refused", request.change, request.replica, type(error).__name__)
                world.trace.comment(error.message)
                return error
            except TidelockError as error:
                world.trace.comment(f"{request.change} of {request.replica} at {home}: {error!r}")
            else:
                return None
            await asyncio.sleep(self._chance.uniform(0.2, 1.0))
