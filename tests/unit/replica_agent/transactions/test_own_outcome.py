"""The answers of a home about its own transactions, and the parts that are dropped by such answers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.clusters.resolving import GivenHomes
from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId, Tid, part_id
from tidelock.csnlog.core.results import (
    Aborted,
    Committed,
    CommittedUnseen,
    HomeAnswer,
    LogReading,
    NeverBegun,
    NotMine,
    Outcome,
    OwnOutcome,
    Running,
)
from tidelock.replica_agent.replicas.undecided import UndecidedResolver
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.transactions.outcomes.resolver import LocalOutcomes, OutcomeResolver
from tidelock.replica_agent.transactions.outcomes.rules import UNDECIDED
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import TxState
from tidelock.replication.core.model import Location, PartMeta
from tidelock.replication.peers import answer_of, word_of

HOME, OTHER = ReplicaId("r1"), ReplicaId("r2")
BOOT = 3
FLOOR = Csn(100)


class Log:
    """A log without transactions (`LogPort`); every home is in the boot that the question names."""

    def __init__(self) -> None:
        self.reads = 0

    async def find(self, tid: Tid, *, newest: bool = False) -> LogReading:
        """Find nothing."""
        del newest
        self.reads += 1
        return LogReading(tid.boot, None)


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """The catalog of r1, which keeps no outcomes up to FLOOR."""
    made = Catalog(tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    await made.write(lambda db: jobs.set_meta(db, outcome_floor=FLOOR))
    yield made
    await made.close()


@pytest.fixture
def transactions() -> Transactions:
    """The transactions of r1's present boot."""
    return Transactions(HOME, BOOT, settings(), time.monotonic)


@pytest.fixture
def log() -> Log:
    """The log that r1 reads."""
    return Log()


@pytest.fixture
def homes() -> GivenHomes:
    """Return the homes of others' transactions, which do not answer until a test lets them."""
    return GivenHomes({})


@pytest.fixture
def outcomes(catalog: Catalog, transactions: Transactions, log: Log, homes: GivenHomes) -> OutcomeResolver:
    """The resolver of r1."""
    local = LocalOutcomes(
        replica=HOME, boot=BOOT, transactions=transactions, reader=catalog.reader, taken=lambda _: None
    )
    return OutcomeResolver(replica=HOME, local=local, log=log, homes=homes)


def tid(snapshot: int, *, home: str = HOME, boot: int = BOOT, counter: int = 9) -> Tid:
    """A transaction that r1 does not remember."""
    return Tid(Csn(snapshot), ReplicaId(home), boot, counter)


async def test_a_home_tells_what_it_remembers_until_it_has_forgotten_that_it_was_applied(
    catalog: Catalog, transactions: Transactions, outcomes: OutcomeResolver
) -> None:
    """Running until it is applied here, also when the log has it already; then the catalog knows."""
    tx = transactions.begin(Csn(200))
    assert outcomes.own(tx.tid) == Running()
    tx.ending.seal()
    transactions.close(tx, TxState.COMMITTED, outcome=Committed(Csn(201)))
    assert outcomes.own(tx.tid) == Running()
    applied = jobs.AppliedRecord(
        Csn(201), 1, [jobs.AppliedTid(str(tx.tid), (), label=None, data_change=True)], {}
    )
    await catalog.write(lambda db: jobs.apply(db, [applied]))
    assert outcomes.own(tx.tid) == Committed(Csn(201), 1)
    await catalog.write(lambda db: jobs.prune_outcomes(db, 2, 2, 2))
    assert outcomes.own(tx.tid) == NotMine()  # forgotten there, and still remembered as closed
    other = transactions.begin(Csn(200))
    transactions.close(other, TxState.ROLLED_BACK)
    assert outcomes.own(other.tid) == Aborted()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (tid(FLOOR), Aborted()),
        (tid(FLOOR - 1), NotMine()),  # it may have been committed and its outcome been pruned
        (tid(FLOOR, boot=BOOT - 1), NotMine()),
        (tid(FLOOR, boot=BOOT + 1), NotMine()),
        (tid(FLOOR, home="r2"), NotMine()),
        (tid(FLOOR, counter=10), NeverBegun()),
    ],
)
def test_what_a_home_does_not_remember_is_aborted_only_where_a_commit_would_be_known(
    outcomes: OutcomeResolver, transactions: Transactions, asked: Tid, told: OwnOutcome
) -> None:
    """The home says aborted only if it would know a commit; otherwise the log is asked."""
    for _ in range(9):
        transactions.begin(Csn(200))
    assert outcomes.own(asked) == told


async def test_what_was_rolled_back_at_the_own_home_is_dropped(
    catalog: Catalog, transactions: Transactions, outcomes: OutcomeResolver
) -> None:
    """Parts whose rollback could not write the catalog are dropped; those of an open transaction stay."""
    rolled_back, still_open = transactions.begin(Csn(200)), transactions.begin(Csn(200))
    transactions.close(rolled_back, TxState.ROLLED_BACK)
    staged = [
        jobs.StagedPart(
            PartMeta(part_id(HOME, BOOT, number), TableId("default.t"), "", 1, 4, "0" * 32),
            Location(f"parts/0{number}/p", 0, 4, b"12345678"),
            tx.tid,
        )
        for number, tx in enumerate((rolled_back, still_open), 1)
    ]
    await catalog.write(lambda db: jobs.add_staged(db, staged, []))
    # A third transaction has only a fetch here, which would ask forever.
    fetched = tid(200)
    forgotten: list[Tid] = []
    looking = undecided(catalog, outcomes, forgotten, fetched)
    await looking.resolve_all()
    assert forgotten == []  # what was seen once may be just on its way
    await looking.resolve_all()
    assert sorted(forgotten) == sorted([rolled_back.tid, fetched])


@pytest.mark.parametrize(
    ("answer", "reads", "dropped"),
    [(Aborted(), 0, True), (Running(), 0, False), (CommittedUnseen(), 0, False), (NotMine(), 1, False)],
)
async def test_the_log_is_only_read_of_what_its_home_cannot_tell(
    catalog: Catalog,
    log: Log,
    homes: GivenHomes,
    outcomes: OutcomeResolver,
    answer: HomeAnswer,
    reads: int,
    dropped: bool,
) -> None:
    """The answer of a home costs ZooKeeper nothing; thousands of transactions may be undecided here."""
    fetched = tid(FLOOR - 1, home=OTHER)
    homes.answers = {fetched: answer}
    forgotten: list[Tid] = []
    looking = undecided(catalog, outcomes, forgotten, fetched)
    await looking.resolve_all()
    await looking.resolve_all()
    assert homes.asked == [fetched]
    assert log.reads == reads
    assert (forgotten == [fetched]) == dropped


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (Committed(Csn(7), 5), "committed"),
        (Aborted(), "aborted"),
        (Running(), "running"),
        (NotMine(), "unknown"),
    ],
)
def test_the_words_between_replicas_are_those_of_the_protocol(outcome: OwnOutcome, word: str) -> None:
    """Between replicas an outcome is a word (docs/protocol.md#peer-routes); a committed one has no CSN."""
    assert word_of(outcome) == word
    assert answer_of(word) == (CommittedUnseen() if isinstance(outcome, Committed) else outcome)


def test_a_word_that_this_version_does_not_know_says_nothing() -> None:
    """An unknown word, of a home of a newer version, decides nothing."""
    assert answer_of("postponed") == NotMine()


def undecided(
    catalog: Catalog, outcomes: OutcomeResolver, forgotten: list[Tid], fetched: Tid
) -> UndecidedResolver:
    """The background task, with parts of one transaction on their way here."""

    async def outcome(asked: Tid) -> Outcome:
        return await outcomes.outcome(asked, UNDECIDED)

    async def forget(tids: list[Tid]) -> None:
        forgotten.extend(tids)

    async def rescue(_: Tid) -> bool:
        return True

    return UndecidedResolver(
        catalog, outcome=outcome, rescue=rescue, forget=forget, fetching=lambda: {str(fetched)}
    )
