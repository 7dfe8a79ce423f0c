"""ZooKeeper is set back to an older state while agents live, and its tree is made again out of catalogs.

Replicas that have applied what the older state does not know must stop; others may go on with it (ADR 0029).
The operator notices after a while and does what docs/operations.md says: he stops all agents, reads the
catalogs of all or of some, decides between two histories where there are two, makes the tree again, starts
the agents, and lets new ones join in place of those that are left out (ADR 0036).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tests.sim.machine import EPOCH_S
from tidelock.csnlog.tree_maker import make_again, require_idle
from tidelock.errors import ClusterMismatchError, ConfigError
from tidelock.replica_agent.rebuilding import plan as planning
from tidelock.replica_agent.rebuilding.facts import CatalogFacts, read_facts
from tidelock.replica_agent.rebuilding.main import not_proved

if TYPE_CHECKING:
    from tests.sim.operating import SimOperator
    from tests.sim.world import SimWorld

#: Shortest and longest time until the operator notices, in virtual seconds.
_NOTICED_S: Final = (2.0, 12.0)
#: All processes have ended so long after they were asked to.
_STOPPED_S: Final = 4.0
#: A replica that follows another history than ZooKeeper has may not serve for longer than that.
_WRONG_S: Final = 9.0
_SILENCE_S: Final = 30.0
_PATIENCE_S: Final = 30.0


class SettingBack:
    """One accident and its repair."""

    def __init__(self, world: SimWorld, operator: SimOperator) -> None:
        self._world, self._operator = world, operator
        self._chance = world.chance("set back")

    async def run(self, back_s: float) -> None:
        """Take a backup, restore it so many seconds later, and make the tree again."""
        world = self._world
        backup = world.zookeeper.backup()
        last = max(world.oracle.records)
        await asyncio.sleep(back_s)
        world.zookeeper.set_back(backup)
        world.oracle.set_back(last)
        noticed_s = self._chance.uniform(*_NOTICED_S)
        await asyncio.sleep(noticed_s)
        if noticed_s > _WRONG_S:
            world.oracle.nobody_serves_another_log(_WRONG_S)
        world.may_start.clear()
        for host in world.machines:
            if self._chance.random() < 0.5:
                host.stop()
            else:
                host.crash(power=False)
        await asyncio.sleep(_STOPPED_S)
        for host in world.machines:
            host.crash(power=False)
        await self._rebuild()
        world.may_start.set()

    async def _rebuild(self) -> None:
        """Make the tree again out of the catalogs that are given; the others are removed for good."""
        world = self._world
        catalogs = self._given()
        store = world.zookeeper.store("rebuild")
        base = planning.newest(catalogs)
        tree_plan = planning.plan(
            catalogs,
            copies=min(world.plan.copies, len(catalogs)),
            epoch_limit=world.plan.epoch_limit,
            incarnation=f"incarnation {self._chance.random()}",
            time_ms=round((EPOCH_S + world.loop.time()) * 1000),
        )
        given = [world.host_at(one.folder) for one in catalogs]
        with world.oracle.rebuilding(given):
            await require_idle(store, base.cluster_id, silence_s=_SILENCE_S, patience_s=_PATIENCE_S)
            await make_again(
                store, tree_plan, patience_s=_PATIENCE_S, multi_bytes_max=given[0].settings.multi_bytes_max
            )
        await store.close()
        self._operator.fill_up(given)

    def _given(self) -> Sequence[CatalogFacts]:
        """Return the catalogs that the operator gives: of one history, and mostly of all its replicas."""
        facts = []
        for host in self._world.hosts:
            try:
                facts.append(read_facts(host.disk.data))
            except ConfigError as error:
                self._world.trace.comment(f"{host.name}: {error.message}")
        groups = [_group(one, facts) for one in facts]
        heads = [
            group
            for one, group in zip(facts, groups, strict=True)
            if not any(_belong(one, other) and other.csn > one.csn for other in facts)
        ]
        enough = [group for group in heads if len(group) >= self._world.plan.copies] or heads
        chosen = self._chance.choice(enough)
        if len(chosen) > self._world.plan.copies and self._chance.random() < 0.3:
            left_out = self._chance.choice(chosen)  # its machine is lost
            others = [one for one in chosen if one is not left_out]
            # The log that ended holds commits of which the oracle does not know any more; the catalogs do.
            if not not_proved(others).lost and self._world.oracle.may_lose(
                self._world.host_at(left_out.folder), struck=False
            ):
                chosen = others
        planning.require_one_history(chosen)
        return chosen


def _group(head: CatalogFacts, facts: Sequence[CatalogFacts]) -> list[CatalogFacts]:
    return [one for one in facts if one is head or (one.csn <= head.csn and _belong(head, one))]


def _belong(one: CatalogFacts, other: CatalogFacts) -> bool:
    """Return whether two catalogs are of one history."""
    if one is other:
        return True
    try:
        planning.require_one_history([one, other])
    except ClusterMismatchError:
        return False
    return True
