"""The clock of everything that is forgotten: no jump of the log makes it hurry, no restart stops it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tidelock.csnlog.core.ids import Csn
from tidelock.replica_agent.snapshots.retention_clock import RetentionClock, advanced
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000


class Agent:
    """A catalog, and the clock of each boot."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.monotonic_s = 5.0
        self.wall_ms = NOW_MS
        self.csn = 0
        self.clock = self.boot()

    def boot(self) -> RetentionClock:
        """Return the clock of a boot that begins now."""
        return RetentionClock(self.catalog.reader, lambda: self.monotonic_s, lambda: self.wall_ms)

    async def apply(self, time_ms: int) -> None:
        """Apply a record with this effective time."""
        self.csn += 1
        record = jobs.AppliedRecord(Csn(self.csn), time_ms, [], {})
        await self.catalog.write(lambda db: jobs.apply(db, [record]))


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    """An agent that has applied a record."""
    catalog = Catalog(tmp_path, initial={"replica": "r1"}, cache_bytes=1 << 20)
    made = Agent(catalog)
    await made.apply(NOW_MS)
    yield made
    await catalog.close()


async def test_it_goes_on_between_records_with_the_monotonic_clock(agent: Agent) -> None:
    """So that an idle shard forgets too."""
    assert agent.clock.now_ms() == NOW_MS
    agent.monotonic_s += 7
    agent.wall_ms += DAY_MS
    assert agent.clock.now_ms() == NOW_MS + 7000


async def test_a_log_that_jumps_is_followed_at_twice_the_pace(agent: Agent) -> None:
    """If most clocks were wrong together, nothing would be forgotten before half its time had passed here."""
    assert agent.clock.now_ms() == NOW_MS
    await agent.apply(NOW_MS + 40 * DAY_MS)
    assert agent.clock.now_ms() == NOW_MS
    agent.monotonic_s += 10
    assert agent.clock.now_ms() == NOW_MS + 20_000


async def test_a_log_that_steps_back_is_followed_at_once(agent: Agent) -> None:
    """Nothing is older than the log says."""
    assert agent.clock.now_ms() == NOW_MS
    await agent.apply(NOW_MS - DAY_MS)
    assert agent.clock.now_ms() == NOW_MS - DAY_MS


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_step_back_between_two_looks_is_followed_too(agent: Agent, restarts: bool) -> None:
    """The log has gone on when the clock looks, and commits of a moment ago have times of long ago."""
    assert agent.clock.now_ms() == NOW_MS
    await agent.catalog.write(agent.clock.save)
    await agent.apply(NOW_MS - 7 * DAY_MS)
    await agent.apply(NOW_MS + 1000)
    clock = agent.boot() if restarts else agent.clock
    assert clock.now_ms() == NOW_MS - 7 * DAY_MS
    await agent.apply(NOW_MS - 9 * DAY_MS)  # before the clock is kept
    await agent.apply(NOW_MS + 2000)
    await agent.catalog.write(clock.save)
    assert clock.now_ms() == NOW_MS - 9 * DAY_MS
    await agent.catalog.write(clock.save)
    agent.monotonic_s += 10
    assert clock.now_ms() == NOW_MS - 9 * DAY_MS + 20_000


async def test_it_goes_on_after_a_restart_from_where_it_was(agent: Agent) -> None:
    """A downtime is made up for at the double pace, so restarts do not postpone forgetting forever."""
    agent.clock.now_ms()
    await agent.catalog.write(agent.clock.save)
    await agent.apply(NOW_MS + 60_000)  # a minute later
    clock = agent.boot()
    assert clock.now_ms() == NOW_MS
    agent.monotonic_s += 60
    assert clock.now_ms() == NOW_MS + 120_000
    agent.monotonic_s += 60
    assert clock.now_ms() == NOW_MS + 180_000


@pytest.mark.parametrize("wrong_ms", [0, -5 * DAY_MS])
async def test_a_catalog_of_before_begins_with_the_earlier_of_log_and_clocks(
    agent: Agent, wrong_ms: int
) -> None:
    """One wrong clock may have made the log's time in an earlier version."""
    agent.wall_ms += wrong_ms
    await agent.apply(NOW_MS + 3650 * DAY_MS)
    assert agent.boot().now_ms() == NOW_MS + wrong_ms


async def test_it_knows_what_was_the_newest_csn_so_long_ago(agent: Agent) -> None:
    """By the log's time, and by no wall clock."""
    await agent.apply(NOW_MS + 1000)
    agent.clock.now_ms()
    agent.monotonic_s += 10
    assert agent.clock.now_ms() == NOW_MS + 11_000
    assert agent.clock.newest_before(10.5) == 1
    assert agent.clock.newest_before(9.5) == 2
    assert agent.clock.newest_before(60) == 0


def test_it_never_passes_the_log() -> None:
    """However long the pause was."""
    assert advanced(5, 100, 1_000_000) == 100
    assert advanced(5, 100, 10) == 25
    assert advanced(500, 100, 10) == 100
