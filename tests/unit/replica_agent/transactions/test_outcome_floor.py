"""Outcomes while the catalog forgets: a committed transaction is never called aborted or running (I8)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.clusters.resolving import GivenHomes
from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId, Tid
from tidelock.csnlog.core.results import (
    Aborted,
    Committed,
    CommittedUnseen,
    HomeAnswer,
    LogReading,
    NeverBegun,
    NotMine,
    Outcome,
    Running,
    TooOld,
)
from tidelock.errors import UnknownTransactionError
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.transactions.outcomes.resolver import LocalOutcomes, OutcomeResolver
from tidelock.replica_agent.transactions.outcomes.rules import AUDIT, CLIENT, LOCK, Policy
from tidelock.replica_agent.transactions.registry import Transactions

R1, R2 = ReplicaId("r1"), ReplicaId("r2")
#: A transaction of a former boot of this replica, committed at CSN 5.
OLD = Tid(Csn(4), R1, 1, 1)
#: A transaction of the same boot, never committed.
NEVER = Tid(Csn(5), R1, 1, 2)
#: A transaction of another home, begun before CSN 5.
HOLDER = Tid(Csn(4), R2, 1, 1)


class Log:
    """ZooKeeper as a replica reads it (`LogPort`).

    Attributes:
        meanwhile: A transaction that is applied and forgotten here while the log is read.
        boot: The present boot of every replica.
        found: The results of the next looks in the log, one after the other; then nothing.
        looks: For each look whether it was behind a write.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.meanwhile: jobs.AppliedRecord | None = None
        self.boot = 2
        self.found: list[Committed | None] = []
        self.looks: list[bool] = []

    async def find(self, tid: Tid, *, newest: bool = False) -> LogReading:
        """Look, which takes some time."""
        del tid
        self.looks.append(newest)
        if (record := self.meanwhile) is not None:
            await self._catalog.write(lambda db: jobs.apply(db, [record]))
            await forget_all(self._catalog)
        return LogReading(self.boot, self.found.pop(0) if self.found else None)


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """A catalog with the outcome."""
    made = Catalog(tmp_path, initial={"replica": R1, "disk": "d1"}, cache_bytes=1 << 20)
    applied = jobs.AppliedRecord(Csn(5), 5000, [jobs.AppliedTid(str(OLD), (), None, True)], {})
    await made.write(lambda db: jobs.apply(db, [applied]))
    yield made
    await made.close()


@pytest.fixture
def log(catalog: Catalog) -> Log:
    """The log."""
    return Log(catalog)


@pytest.fixture
def homes() -> GivenHomes:
    """The other homes."""
    return GivenHomes({})


@pytest.fixture
def outcomes(catalog: Catalog, log: Log, homes: GivenHomes) -> OutcomeResolver:
    """Return the resolver of an agent in its second boot."""
    local = LocalOutcomes(
        replica=R1,
        boot=2,
        transactions=Transactions(R1, 2, settings(), time.monotonic),
        reader=catalog.reader,
        taken=lambda _: None,
    )
    return OutcomeResolver(replica=R1, local=local, log=log, homes=homes)


@pytest.mark.parametrize("policy", [CLIENT, LOCK, AUDIT])
async def test_what_is_kept_is_told(outcomes: OutcomeResolver, policy: Policy) -> None:
    """A kept outcome is in the catalog; a tid in neither catalog nor log was aborted with its boot."""
    assert await outcomes.outcome(OLD, policy) == Committed(Csn(5), 5000)
    assert await outcomes.outcome(NEVER, policy) == Aborted()


async def test_what_is_forgotten_meanwhile_is_too_old(log: Log, outcomes: OutcomeResolver) -> None:
    """The floor that counts is read after the outcomes, which are read after the log."""
    late = Tid(Csn(5), R1, 1, 3)
    log.meanwhile = jobs.AppliedRecord(Csn(6), 6000, [jobs.AppliedTid(str(late), (), None, True)], {})
    assert await outcomes.outcome(late, CLIENT) == TooOld(Csn(6))


@pytest.mark.scenario("S83")
async def test_what_was_forgotten_before_is_too_old(
    catalog: Catalog, log: Log, outcomes: OutcomeResolver
) -> None:
    """A forgotten commit is too old; a transaction that began above the floor was aborted with its boot."""
    await forget_all(catalog)
    assert await outcomes.outcome(OLD, CLIENT) == TooOld(Csn(5))
    assert await outcomes.outcome(NEVER, CLIENT) == Aborted()
    assert log.looks == [False, False]


@pytest.mark.parametrize(
    ("answer", "boot", "expected"),
    [
        (Running(), 1, Running()),
        (None, 1, Running()),
        (Aborted(), 1, Aborted()),
        (NotMine(), 1, TooOld(Csn(5))),
        (Running(), 2, TooOld(Csn(5))),
    ],
)
async def test_the_holder_of_a_lock_may_be_older_than_what_is_kept(
    catalog: Catalog,
    outcomes: OutcomeResolver,
    log: Log,
    homes: GivenHomes,
    answer: HomeAnswer | None,
    boot: int,
    expected: Outcome,
) -> None:
    """A holder that began before the floor, at another home, conflicts until it is known to be over (I7)."""
    await forget_all(catalog)
    log.boot = boot
    homes.answers = {} if answer is None else {HOLDER: answer}
    assert await outcomes.outcome(HOLDER, LOCK) == expected


@pytest.mark.parametrize("answer", [CommittedUnseen(), NotMine()])
async def test_the_holder_of_a_lock_that_commits_while_it_is_asked_about_is_not_too_old(
    catalog: Catalog, outcomes: OutcomeResolver, log: Log, homes: GivenHomes, answer: HomeAnswer
) -> None:
    """The holder's CSN is above the floor, so a statement that does not see it must conflict (I7)."""
    await forget_all(catalog)
    log.boot, log.found = 1, [None, Committed(Csn(9))]
    homes.answers = {HOLDER: answer}
    assert await outcomes.outcome(HOLDER, LOCK) == Committed(Csn(9))
    assert len(log.looks) == 2


async def test_a_tid_of_a_boot_that_never_was_is_an_error(outcomes: OutcomeResolver, log: Log) -> None:
    """Such a tid is not "running". A read may be stale, so the error follows a read behind a write."""
    for home in (R1, R2):
        log.looks.clear()
        with pytest.raises(UnknownTransactionError, match=f"of replica {home}, whose last boot is 2"):
            await outcomes.outcome(Tid(Csn(7), home, 3, 1), CLIENT)
        assert log.looks == [False, True]


async def test_a_boot_that_a_stale_read_does_not_show_is_no_error(
    catalog: Catalog, outcomes: OutcomeResolver
) -> None:
    """The home has just started again, and the ZooKeeper server that is read lags behind."""

    class Lagging(Log):
        async def find(self, tid: Tid, *, newest: bool = False) -> LogReading:
            found = await super().find(tid, newest=newest)
            return LogReading(3, None) if newest else found

    outcomes.log = Lagging(catalog)
    assert await outcomes.outcome(Tid(Csn(7), R2, 3, 1), CLIENT) == Running()


async def forget_all(catalog: Catalog) -> None:
    """Forget all kept outcomes, which raises the floor to the newest of them."""
    await catalog.write(lambda db: jobs.prune_outcomes(db, 7000, 0, 0))


async def test_a_tid_above_the_end_of_the_log_is_an_error(
    outcomes: OutcomeResolver, catalog: Catalog
) -> None:
    """Such a tid is not "aborted": an operator who mistypes one would run its work once more."""

    class Ending(Log):
        async def find(self, tid: Tid, *, newest: bool = False) -> LogReading:
            return replace(await super().find(tid, newest=newest), end=Csn(41))

    outcomes.log = log = Ending(catalog)
    log.boot = 3
    with pytest.raises(UnknownTransactionError, match="reads at CSN 99, and the log ends at 41"):
        await outcomes.outcome(Tid(Csn(99), R2, 1, 999), CLIENT)
    assert log.looks == [False, True]


async def test_a_tid_that_this_home_has_not_begun_is_an_error(outcomes: OutcomeResolver) -> None:
    """The home counts its transactions, and needs nobody to know it."""
    with pytest.raises(
        UnknownTransactionError, match="no transaction that r1 has begun since its last start"
    ):
        await outcomes.outcome(Tid(Csn(7), R1, 2, 1), CLIENT)


async def test_a_tid_that_its_home_has_not_begun_is_an_error(
    outcomes: OutcomeResolver, homes: GivenHomes
) -> None:
    """Another home says so."""
    tid = Tid(Csn(7), R2, 2, 999)
    homes.answers = {tid: NeverBegun()}
    with pytest.raises(
        UnknownTransactionError, match="no transaction that r2 has begun since its last start"
    ):
        await outcomes.outcome(tid, CLIENT)
