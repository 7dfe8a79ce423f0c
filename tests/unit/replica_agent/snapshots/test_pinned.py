"""Pins in ZooKeeper: granted, renewed, released, and deleted when their clients end; times and CSNs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.aio import until
from tests.support.clusters.log_node import LogNode, make_cluster
from tests.support.rows import settings
from tests.support.wall_clocks import own_clock
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Delete
from tidelock.csnlog.log import LogState
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, MemoryStore, RequestFault, StoreRequest, nth
from tidelock.errors import (
    BadRequestError,
    SnapshotTooOldError,
    StandbyError,
    UnavailableError,
    UnknownTransactionError,
)
from tidelock.replica_agent.snapshots.pinned import Snapshots
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters

R1 = ReplicaId("r1")
#: The CSN that is applied here, and the time of its commit.
APPLIED, TIME_MS = Csn(1), 5000


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@dataclass
class Replica:
    """One boot of r1: its snapshots, over a log on ZooKeeper in memory."""

    ensemble: MemoryEnsemble
    store: MemoryStore
    node: LogNode
    clock: Clock
    catalog: Catalog
    waiters: CsnWaiters
    snapshots: Snapshots

    async def pins(self) -> set[str]:
        """Return the pins in ZooKeeper."""
        names = await self.ensemble.store().children(tree.PINS)
        assert isinstance(names, Ok)
        return set(names.value)

    async def apply(self, records: list[jobs.AppliedRecord]) -> None:
        """Let records be visible here."""
        await self.catalog.write(lambda db: jobs.apply(db, records))
        self.waiters.advance(records[-1].csn)

    def life(self, boot: int, wait_bound_s: float = 0.05) -> Snapshots:
        """Return the snapshots of another boot on the same session; it waits for so long."""
        bounds = settings(snapshots_max=3, wait_bound_s=wait_bound_s)
        return Snapshots(
            replica=R1, boot=boot, copies=lambda: 2, settings=bounds,
            store=self.store, log=self.node.log, reader=self.catalog.reader, waiters=self.waiters,
            peers=_no_peers, clock=self.clock, clocks=own_clock(),
        )  # fmt: skip


async def _no_peers() -> dict[ReplicaId, Csn]:
    return {}


@pytest.fixture
async def r1(tmp_path: Path) -> AsyncIterator[Replica]:
    """Return a replica that has applied the genesis records."""
    ensemble = MemoryEnsemble()
    store = ensemble.store("r1")
    await make_cluster(store)
    catalog = Catalog(tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    records = [jobs.AppliedRecord(Csn(csn), TIME_MS, [], {}) for csn in range(APPLIED + 1)]
    await catalog.write(lambda db: jobs.apply(db, records))
    async with LogNode(store) as node:
        waiters = CsnWaiters(APPLIED)
        made = Replica(ensemble, store, node, Clock(), catalog, waiters, None)  # type: ignore[arg-type]
        made.snapshots = made.life(1)
        yield made
    await catalog.close()


def of_pins(call: StoreRequest) -> bool:
    """A write to a pin."""
    return any(op.path.startswith("pins/") for op in call.ops)


async def test_a_pin_stands_until_it_is_given_back(r1: Replica) -> None:
    """It is there when the snapshot is, survives renewals, and goes with it."""
    pin = await r1.snapshots.open(csn=APPLIED, at_ms=None, min_csn=None, ttl_s=10)
    assert await r1.pins() == {pin.id}
    await r1.snapshots.renew(pin.id)
    await r1.snapshots.close(pin.id)
    assert await r1.pins() == set()


async def test_a_lost_answer_to_a_renewal_leaves_nothing_behind(r1: Replica) -> None:
    """The pin can be released although the version of its znode is unknown."""
    pin = await r1.snapshots.open(csn=APPLIED, at_ms=None, min_csn=None, ttl_s=10)
    r1.ensemble.plan = nth(1, RequestFault.REPLY_LOST, of_pins)
    with pytest.raises(UnavailableError):
        await r1.snapshots.renew(pin.id)
    r1.ensemble.plan = None
    await r1.snapshots.close(pin.id)
    assert await r1.pins() == set()


async def test_what_could_not_be_given_back_is_given_back_later(r1: Replica) -> None:
    """A pin of a closed snapshot, or of one that was never granted, is deleted when ZooKeeper is back."""
    closed = await r1.snapshots.open(csn=APPLIED, at_ms=None, min_csn=None, ttl_s=10)
    r1.ensemble.plan = nth(1, RequestFault.NOT_CONNECTED, of_pins)
    await r1.snapshots.close(closed.id)
    assert await r1.pins() == {closed.id}
    await until(lambda: r1.node.log.state is LogState.FOLLOWING)
    await r1.snapshots.sweep()
    assert await r1.pins() == set()
    r1.ensemble.plan = lambda call: RequestFault.REPLY_LOST if of_pins(call) else None
    with pytest.raises(UnavailableError):
        await r1.snapshots.open(csn=APPLIED, at_ms=None, min_csn=None, ttl_s=10)
    r1.ensemble.plan = None
    await until(lambda: r1.node.log.state is LogState.FOLLOWING)
    await r1.snapshots.sweep()
    assert await r1.pins() == set()


async def test_a_renewal_is_a_sign_of_life_from_its_arrival_on(r1: Replica) -> None:
    """A pin is not swept during its renewal."""
    pin = await r1.snapshots.open(csn=APPLIED, at_ms=None, min_csn=None, ttl_s=10)
    r1.clock.now += 9
    r1.ensemble.plan = nth(1, RequestFault.REPLY_LOST, of_pins)
    with pytest.raises(UnavailableError):
        await r1.snapshots.renew(pin.id)
    r1.ensemble.plan = None
    r1.clock.now += 2
    await r1.snapshots.sweep()
    assert await r1.pins() == {pin.id}
    r1.clock.now += 9
    await r1.snapshots.sweep()
    assert await r1.pins() == set()
    with pytest.raises(UnknownTransactionError):
        await r1.snapshots.renew(pin.id)


async def test_pins_of_a_former_life_are_taken_over(r1: Replica) -> None:
    """A client renews its pin across a restart; a pin without renewal is deleted when its lease ends."""
    kept, lost = [await r1.snapshots.open(csn=APPLIED, at_ms=None, min_csn=None, ttl_s=10) for _ in range(2)]
    after = r1.life(2)
    await after.sweep()
    assert after.oldest(Csn(99)) == APPLIED
    r1.clock.now += 9
    await after.renew(kept.id)
    r1.clock.now += 9
    await after.sweep()
    assert await r1.pins() == {kept.id}
    assert lost.id not in {shown.id for shown in after.describe()}


async def test_a_pin_that_others_have_ended_is_forgotten(r1: Replica) -> None:
    """It no longer holds this replica's progress back; a list that lags behind ends none."""
    ended, kept = [await r1.snapshots.open(csn=APPLIED, at_ms=None, min_csn=None, ttl_s=10) for _ in range(2)]
    await r1.ensemble.store().multi((Delete(tree.pin(ended.id), -1),))
    r1.ensemble.plan = lambda call: RequestFault.NOT_CONNECTED if call.kind == "children" else None
    await r1.snapshots.forget_ended()
    assert len(r1.snapshots.describe()) == 2
    r1.ensemble.plan = None
    await r1.snapshots.forget_ended()
    assert [shown.id for shown in r1.snapshots.describe()] == [kept.id]
    with pytest.raises(UnknownTransactionError):
        await r1.snapshots.renew(ended.id)


async def test_the_number_of_snapshots_is_bounded(r1: Replica) -> None:
    """Above snapshots_max a client is sent elsewhere; a closed snapshot makes room."""
    pins = [await r1.snapshots.open(csn=APPLIED, at_ms=None, min_csn=None, ttl_s=10) for _ in range(3)]
    with pytest.raises(UnavailableError, match="snapshots_max=3"):
        await r1.snapshots.open(csn=APPLIED, at_ms=None, min_csn=None, ttl_s=10)
    await r1.snapshots.close(pins[0].id)
    await r1.snapshots.open(csn=APPLIED, at_ms=None, min_csn=None, ttl_s=10)


async def test_a_time_that_is_not_over_here_waits_for_the_log(r1: Replica) -> None:
    """A replica that lags cannot tell which commits a time contains: it says standby, it leaves none out."""
    assert await r1.snapshots.at_time(TIME_MS) == APPLIED  # the log ends here
    await r1.node.commit(1)
    with pytest.raises(StandbyError):
        await r1.snapshots.at_time(TIME_MS)
    await r1.apply([jobs.AppliedRecord(Csn(2), TIME_MS + 10, [], {})])
    assert await r1.snapshots.at_time(TIME_MS + 10) == 2
    assert await r1.snapshots.at_time(TIME_MS + 9) == APPLIED


async def test_a_time_waits_for_the_record_that_heals_and_not_for_any(r1: Replica) -> None:
    """Wrong clocks hold the time ahead, and a record with such clocks comes before the tick."""
    snapshots = r1.life(1, wait_bound_s=6.0)  # so long that a slow machine is no reason for a further tick
    now_ms, year_ms = snapshots.clocks.now_ms(), 365 * 86_400_000
    ahead = [jobs.AppliedRecord(Csn(2), now_ms + year_ms, [], {}, agreed_ms=now_ms)]
    stale = [jobs.AppliedRecord(Csn(3), now_ms + year_ms, [], {}, agreed_ms=now_ms)]
    tick = [jobs.AppliedRecord(Csn(4), now_ms, [], {}, agreed_ms=now_ms)]
    await r1.node.commit(1)
    await r1.apply(ahead)
    asked = asyncio.create_task(snapshots.at_time(now_ms))
    await asyncio.sleep(0)
    await r1.apply(stale)
    await until(lambda: r1.node.log.end >= 3)
    await r1.apply(tick)
    assert await asked == 4


@pytest.mark.parametrize("at_ms", [-1, 1 << 63])
async def test_what_is_no_time(r1: Replica, at_ms: int) -> None:
    """A number that no clock shows is refused with the reason."""
    with pytest.raises(BadRequestError, match="milliseconds since 1970"):
        await r1.snapshots.at_time(at_ms)


async def test_what_a_session_has_seen_may_be_below_the_horizon(r1: Replica) -> None:
    """A client that was idle for long goes on: its bound says from where on it reads, and no more."""
    seen = Csn(APPLIED - 1)
    await r1.catalog.write(lambda db: jobs.set_meta(db, horizon=APPLIED))
    with pytest.raises(SnapshotTooOldError):
        await r1.snapshots.open(csn=seen, at_ms=None, min_csn=None, ttl_s=1.0)
    assert (await r1.snapshots.open(csn=None, at_ms=None, min_csn=seen, ttl_s=1.0)).csn == APPLIED
