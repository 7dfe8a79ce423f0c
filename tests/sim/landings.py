"""Clients that land rows, and the judgement: what was acknowledged comes, and nothing comes twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from tests.sim.clients import BufferedBody, SimSession, listed
from tests.sim.log_lives import LogLife
from tests.sim.network import RefusedConnectionError
from tests.sim.transfers import SCHEMA, Lists, keys_of, landing_rows
from tidelock.csnlog.core.ids import Csn
from tidelock.errors import FencedError, RefusedError, SnapshotTooOldError, TidelockError
from tidelock.replica_agent.tables.names import full_name
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.wire.writes import LandAnswer

if TYPE_CHECKING:
    from tests.sim.world import SimWorld
    from tidelock.replica_agent.services.bundle import Services

TABLE: Final = "l"
SCHEMA_OF_IT: Final = TableSchema.from_request(TABLE, SCHEMA, properties={"landing": "on"})
#: How long a landing may take at an agent (virtual seconds).
_LAND_S: Final = 3.0
#: Landings of a client for each transaction of a writer.
_OFTEN: Final = 4


class LandingStory:
    """The rows of all clients by their keys, and the answers to them."""

    def __init__(self) -> None:
        self.acknowledged: set[str] = set()
        self.refused: set[str] = set()
        self.sent: set[str] = set()


class SimLander(SimSession):
    """Lands rows with keys of their own, one after the other, each once, at any home."""

    def __init__(self, world: SimWorld, name: str) -> None:
        super().__init__(world, name, 1)

    async def run(self) -> None:
        """Land all rows."""
        for number in range(_OFTEN * self.world.plan.transactions):
            await asyncio.sleep(self.chance.expovariate(_OFTEN * self.world.plan.transactions / 36.0))
            await self._land(f"{self.name}.{number}", number)

    async def _land(self, key: str, number: int) -> None:
        story = self.world.oracle.landings
        data = BufferedBody(landing_rows(key, number)).data

        async def land(at: Services) -> LandAnswer:
            return await at.transactions.land(TABLE, data, min_csn=None, timeout_s=_LAND_S)

        story.sent.add(key)
        try:
            await self.ask("land", land, timeout_s=_LAND_S + 1.0)
        except RefusedConnectionError:
            story.refused.add(key)
        except RefusedError as error:
            if not isinstance(error, FencedError):
                story.refused.add(key)
        except TidelockError as error:
            self.world.trace.comment(f"{key} may have landed: {error!r}")
        else:
            story.acknowledged.add(key)
            self.world.trace.note("landed", key)


async def judge_landings(world: SimWorld, end: Csn) -> None:
    """Look at the rows at the end of the log, at every replica.

    A ZooKeeper that was set back takes commits with it; then nothing may come twice, and that is all.
    """
    if not world.plan.landers:
        return
    story = world.oracle.landings
    for host in world.hosts:
        session = SimSession(world, f"c-landed-{host.name}", 1)
        try:
            found: Lists = await session.ask(
                "read", lambda at: listed(at, end, [TABLE]), at=host.name, timeout_s=30.0
            )
        except SnapshotTooOldError as error:
            world.oracle.violated("I9 HONEST", f"{host.name} does not give CSN {end}: {error.message}")
            continue
        there = Counter(keys_of(found[str(full_name(TABLE))]))
        if doubled := sorted(key for key, count in there.items() if count > 1):
            world.oracle.violated("I7 NOCONFLICT", f"{host.name} shows rows that landed twice: {doubled}")
        if strange := sorted(there.keys() - (story.sent - story.refused)):
            world.oracle.violated("I17 TRUTHFUL", f"{host.name} shows rows that were refused: {strange}")
        lost = sorted(story.acknowledged - there.keys())
        if lost and world.oracle.logs.now is LogLife.FIRST:
            world.oracle.violated("I4 DURABLE", f"{host.name} lacks rows that have landed: {lost}")
