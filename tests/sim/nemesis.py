"""Carries out the faults of a plan, within what the product promises to bear.

It promises to bear the loss of any disk of which all committed parts lie on another one as well; so a disk is
replaced only then, and the fault is left out otherwise. Everything else may come at any moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import msgspec

from tests.sim.network import Weather
from tests.sim.operating import SimOperator
from tests.sim.plan import FAULTS_S, MEMBERS, PlannedFault
from tests.sim.setting_back import SettingBack
from tests.sim.zookeeper import DELAY_S
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.fence import seize
from tidelock.csnlog.core.model import STRUCK
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import SetData

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.world import SimWorld

_SLOW: Final = 200.0
_SLOW_DISK_S: Final = 0.4
_SLOW_ANSWER_S: Final = 0.2
_BROKEN_SHARE: Final = 0.3
#: Wall clocks jump by up to ten days: outcomes, labels and history are kept for less.
_SKEW_S: Final = 10 * 86_400.0
#: Some of these jumps are those of ZooKeeper's leader.
_LEADER_SHARE: Final = 0.25
#: The faults that the operator carries out, or repairs: they may last until all others are healed.
_OPERATED: Final = MEMBERS | {"set_back", "twin"}
#: So long after a fault a replica counts as well again: sessions have expired, fences are raised.
_WELL_AFTER_S: Final = 10.0
#: So long after it an agent whose id another machine has may take to say so, and what befalls the two goes on
#: meanwhile: each start of one of them waits once more for the end of the other one's sign of life.
_SAYS_S: Final = 30.0


class SimNemesis:
    """The faults of a run.

    Attributes:
        operator: Lets members come and go.
    """

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self.operator = SimOperator(world)
        self._chance = world.chance("nemesis")
        #: The faults under way, each with its host.
        self._under_way: list[tuple[str, str]] = []
        #: When the last fault of a host ended, in virtual seconds.
        self._over_s: dict[str, float] = {}

    async def run(self) -> None:
        """Carry out all faults; returns when the time for them is over."""
        world, loop = self._world, asyncio.get_running_loop()
        begun_s = loop.time()
        world.zookeeper.rate = world.plan.requests
        weather = world.network.weather
        weather.loss, weather.twice, weather.late = world.plan.loss, world.plan.twice, world.plan.late
        async with asyncio.TaskGroup() as group:
            for fault in world.plan.faults:
                await asyncio.sleep(begun_s + fault.at_s - loop.time())
                begin = self.operator.begin if fault.kind in _OPERATED else group.create_task
                begin(self._befall(fault))
            await asyncio.sleep(begun_s + FAULTS_S - loop.time())

    def well(self) -> set[str]:
        """Return the replicas that serve and that no fault has touched for a while."""
        now, troubled = self._world.loop.time(), {host for host, _ in self._under_way}
        if self.befallen({"lag", "set_back"}):
            return set()  # a ZooKeeper server that is behind serves any of them; the accident befalls all
        return {
            host.name
            for host in self._world.hosts
            if host.serving
            and host.name not in troubled
            and now - self._over_s.get(host.name, -_WELL_AFTER_S) >= _WELL_AFTER_S
        }

    def befallen(self, kinds: Collection[str]) -> bool:
        """Tell whether a fault of one of these kinds is under way."""
        return any(kind in kinds for _, kind in self._under_way)

    async def _befall(self, fault: PlannedFault) -> None:
        world = self._world
        host = world.hosts[fault.target % len(world.hosts)]
        if fault.kind in {"replace", "strike", "twin"} and not world.oracle.may_lose(
            host, struck=fault.kind == "strike"
        ):
            world.trace.note("spared", host.name)
            return
        world.trace.note("nemesis", fault.kind, host.name, fault.length_s)
        world.oracle.did[fault.kind] += 1
        self._under_way.append((host.name, fault.kind))
        match fault.kind:
            case "add":
                await self.operator.add()
            case "twin":
                await self._twin(host, fault.length_s)
            case "set_back":
                await SettingBack(world, self.operator).run(fault.length_s)
            case "remove" | "replace_member":
                await self.operator.remove(host, new=fault.kind == "replace_member")
            case "kill" | "power" | "replace":
                host.may_run.clear()
                host.crash(power=fault.kind != "kill", replace=fault.kind == "replace")
            case "stop":
                host.stop()
            case "fence":
                await self._fence(host)
            case "strike":
                await self._fence(host, STRUCK)
            case "zookeeper":
                self._cut_off(host)
            case "expire":
                if host.store is not None and host.frozen:
                    world.zookeeper.end_session(host.store.session)  # its client does not know
                elif host.store is not None and host.agent is not None:
                    host.store.expire()
            case "freeze":
                host.freeze()
            case "mute" | "deaf":
                for other in world.hosts:
                    pair = (host.name, other.name) if fault.kind == "mute" else (other.name, host.name)
                    world.network.weather.cut.add(pair)
            case "slow":
                world.network.weather.slow[host.name] = _SLOW
            case "slow_zookeeper":
                host.answer_s = _SLOW_ANSWER_S
            case "slow_disk":
                host.disk.delay_s = _SLOW_DISK_S
            case "disk_errors":
                host.disk.broken = _BROKEN_SHARE
            case "full":
                host.disk.full = True
            case "lag":
                servers = world.zookeeper.servers
                servers[1 + fault.target % (len(servers) - 1)].lag()
            case "skew":
                skewed = world.zookeeper if self._chance.random() < _LEADER_SHARE else host
                skewed.skew_s = self._chance.uniform(-_SKEW_S, _SKEW_S)
        await asyncio.sleep(fault.length_s)
        self._end(fault, host)

    def _end(self, fault: PlannedFault, host: Host) -> None:
        world = self._world
        world.trace.note("over", fault.kind, host.name)
        self._under_way.remove((host.name, fault.kind))
        for touched in world.hosts if fault.kind == "set_back" else (host,):
            self._over_s[touched.name] = world.loop.time()
        match fault.kind:
            case "kill" | "power" | "replace":
                host.may_run.set()
            case "freeze":
                host.thaw()
            case "zookeeper":
                self._reconnect(host)
            case "mute" | "deaf":
                cut = world.network.weather.cut
                cut.difference_update([pair for pair in cut if host.name in pair])
            case "slow":
                world.network.weather.slow.pop(host.name, None)
            case "slow_zookeeper":
                host.answer_s = DELAY_S
            case "slow_disk" | "disk_errors" | "full":
                host.disk.calm()
            case "lag":
                for server in world.zookeeper.servers:
                    server.catch_up()

    async def _twin(self, host: Host, length_s: float) -> None:
        """Start a second machine under the id of a replica that lives, or that has lost ZooKeeper.

        One of the two goes on. The other names that one, or says that its catalog is of another history, and
        is not started any more.
        """
        world = self._world
        host.doomed = True
        if self._chance.random() < 0.6:
            self._cut_off(host)
        twin = world.add_machine(replica=host.replica)
        twin.ordered = host.cut_off
        await asyncio.sleep(length_s)
        if host.cut_off:
            self._reconnect(host)
        both = (host, twin)
        until_s = world.loop.time() + _SAYS_S
        while world.loop.time() < until_s and not any(one.told_of for one in both):
            await asyncio.sleep(1.0)
            if any(one.frozen for one in both):  # neither of them can say anything, or take the id over
                until_s = world.loop.time() + _SAYS_S
        owner = world.host_of(host.replica)
        other = host if owner is twin else twin
        host.doomed = False
        if other.agent is not None and other.serving and owner.serving:
            world.oracle.violated("I1 UNIQUE", f"{owner.name} and {other.name} both serve as {host.replica}")
        told = other.told_of or other.of_another or other.over
        if owner.serving and not told and other.may_run.is_set():
            world.oracle.violated("I15 FAILSTOP", f"{other.name} does not say that {owner.name} has its id")
        named, is_address, _ = other.told_of.partition(":")
        if is_address and named != owner.name:  # else ZooKeeper did not tell it the address
            what = f"{other.name} says that {other.told_of} has its id, and {owner.name} has it"
            world.oracle.violated("I17 TRUTHFUL", what)
        other.over = True
        other.crash(power=False)

    async def _fence(self, host: Host, state: str = "") -> None:
        """Raise the fence of a replica, as a peer does that needs its outcomes, or strike it."""
        store = self._world.zookeeper.store("nemesis")
        path = tree.session(host.replica)
        node = await store.get(path)
        if isinstance(node, Ok):
            boot = codec.decode_session(node.value.data).boot
            change = seize(path, node.value, boot, f"fence {self._chance.random()}")
            assert change is not None
            if state:
                struck = msgspec.structs.replace(codec.decode_session(change.data), state=state)
                change = SetData(path, codec.encode_session(struck), change.version)
            await store.multi((change,))
        await store.close()

    def _cut_off(self, host: Host) -> None:
        host.cut_off = True
        if host.store is not None and host.agent is not None:
            host.store.suspend()
            self._world.zookeeper.expire_later(host.store, host.settings.session_timeout_s)

    @staticmethod
    def _reconnect(host: Host) -> None:
        host.cut_off = False
        if host.store is not None and host.agent is not None:
            host.store.resume()

    def heal(self) -> None:
        """End every fault."""
        world = self._world
        world.trace.note("healed")
        world.zookeeper.rate = 0.0
        world.zookeeper.skew_s = 0.0
        world.network.weather = Weather()
        for server in world.zookeeper.servers:
            server.catch_up()
        for host in world.machines:
            host.may_run.set()
            host.thaw()
            host.disk.calm()
            host.answer_s = DELAY_S
            host.skew_s = 0.0
            if host.cut_off:
                self._reconnect(host)
        world.zookeeper.deliver_late()
