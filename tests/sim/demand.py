"""The demand that commits go on while ``copies`` replicas are well, whatever the others suffer (I14)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tests.sim.clients import SimWriter
from tests.sim.plan import MEMBERS
from workloads.history import CallEnd

if TYPE_CHECKING:
    from tests.sim.nemesis import SimNemesis
    from tests.sim.world import SimWorld

#: Faults under which a replica lives or seems to live, and cannot apply what others commit.
STUCK: Final = frozenset({"full", "deaf", "freeze"})
#: Pause between two demands, and between two looks at those who are well (virtual seconds).
_PAUSE_S: Final = 0.5
_LOOK_S: Final = 0.1


class CommitDemand:
    """A client that commits at well replicas while another one is stuck, comes or goes: none is refused.

    Attributes:
        made: The number of its demands.
    """

    def __init__(self, world: SimWorld, nemesis: SimNemesis) -> None:
        self._world, self._nemesis = world, nemesis
        self._chance = world.chance("demand")
        self.made = 0

    async def run(self, until: asyncio.Task[None]) -> None:
        """Demand commits until the faults are over."""
        plan = self._world.plan
        if plan.requests or plan.loss or plan.twice or plan.late:
            return  # then any request of a client or an agent may fail
        while not until.done():
            await asyncio.sleep(_PAUSE_S)
            well = self._nemesis.well()
            if self._nemesis.befallen(STUCK | MEMBERS) and len(well) >= plan.copies:
                await self._demand(well)

    async def _demand(self, well: set[str]) -> None:
        self.made += 1
        world, home = self._world, self._chance.choice(sorted(well))
        write = asyncio.create_task(SimWriter(world, f"c-demand{self.made}").write_at(home))
        while not write.done():
            await asyncio.wait([write], timeout=_LOOK_S)
            well = well & self._nemesis.well()
        if write.result() is CallEnd.OK or home not in well or len(well) < world.plan.copies:
            return
        told = [line for line in world.lines if line["process"].startswith(f"c-demand{self.made}/")]
        what = f"{home} does not commit although {', '.join(sorted(well))} are well: {told[-1]}"
        world.oracle.violated("I14 LIVE", what)
