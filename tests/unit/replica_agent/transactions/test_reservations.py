"""Reserved tids: each is used once at most, never after its outcome was asked for, never after its time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId, Tid
from tidelock.csnlog.core.results import Aborted, Running
from tidelock.errors import BadRequestError, UnavailableError, UnknownTransactionError
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction, TxState

R1, R2 = ReplicaId("r1"), ReplicaId("r2")
KEPT_S, MOST, ONCE = 60.0, 20, 8


@dataclass
class Home:
    """The registry of a home, at a time that tests move."""

    now: float = 0.0
    registry: Transactions = field(init=False)

    def __post_init__(self) -> None:
        """Begin with boot 3."""
        limits = settings(
            tids_reserved_s=KEPT_S, tids_reserved_max=MOST, tids_reserved_once_max=ONCE, transactions_max=4
        )
        self.registry = Transactions(R1, 3, limits, lambda: self.now)

    def use(self, tid: Tid, reached: int = 9) -> Transaction:
        """Begin the transaction of a reserved tid."""
        return self.registry.begin_reserved(tid, Csn(reached))


@pytest.fixture
def home() -> Home:
    """A home without transactions."""
    return Home()


def nth(first: Tid, number: int) -> Tid:
    """Return the tid that follows the first one of a block by a number."""
    return Tid(first.snapshot, first.home, first.boot, first.counter + number)


def test_a_tid_is_used_once(home: Home) -> None:
    """The transaction has the tid; a second one under it is refused, open or ended."""
    first = home.registry.reserve(Csn(7), 2)
    assert (first, len(home.registry.reserved)) == (Tid(Csn(7), R1, 3, 1), 2)
    tx = home.use(first)
    assert (tx.tid, tx.state) == (first, TxState.OPEN)
    assert home.registry.find(str(first)) is tx
    for _ in range(2):
        with pytest.raises(UnknownTransactionError, match="never begun"):
            home.use(first)
        if tx.state is TxState.OPEN:
            home.registry.close(tx, TxState.ROLLED_BACK)
    assert home.use(nth(first, 1)).tid.counter == 2
    assert home.registry.begin(Csn(9)).tid.counter == 3  # tids of begin() and reserved ones never meet


def test_the_counters_of_blocks_are_apart(home: Home) -> None:
    """Blocks and begun transactions share one counter, which the outcome rules call the issued tids."""
    one, begun, two = (
        home.registry.reserve(Csn(7), 3),
        home.registry.begin(Csn(7)),
        home.registry.reserve(Csn(8), 2),
    )
    assert [one.counter, begun.tid.counter, two.counter, home.registry.issued] == [1, 4, 5, 6]


def test_only_what_was_reserved_is_taken(home: Home) -> None:
    """Another home, boot, counter or snapshot CSN is another tid."""
    first = home.registry.reserve(Csn(7), 2)
    for wrong in (
        Tid(Csn(7), R2, 3, 1),
        Tid(Csn(7), R1, 2, 1),
        Tid(Csn(7), R1, 3, 3),
        Tid(Csn(8), R1, 3, 1),
        Tid(Csn(0), R1, 3, 1),
    ):
        with pytest.raises(UnknownTransactionError):
            home.use(wrong)
        home.registry.withdraw(wrong)
    assert home.use(first).tid == first


def test_who_asks_for_the_outcome_ends_the_reservation(home: Home) -> None:
    """After that the tid is not taken. A question about a used one changes nothing."""
    first = home.registry.reserve(Csn(7), 2)
    used = home.use(nth(first, 1))
    for tid in (first, used.tid):
        home.registry.withdraw(tid)
    with pytest.raises(UnknownTransactionError):
        home.use(first)
    assert home.registry.outcome(str(used.tid)) == Running()
    home.registry.close(used, TxState.ROLLED_BACK)
    assert home.registry.outcome(str(used.tid)) == Aborted()


def test_reservations_end_with_their_time(home: Home) -> None:
    """At its end, not before."""
    one = home.registry.reserve(Csn(7), 2)
    home.now = KEPT_S - 0.001
    two = home.registry.reserve(Csn(8), 1)
    home.use(one)
    home.now = KEPT_S
    with pytest.raises(UnknownTransactionError):
        home.use(nth(one, 1))
    home.use(two)
    assert len(home.registry.reserved) == 0


def test_their_number_is_bounded(home: Home) -> None:
    """Beyond the most the oldest block ends, whole."""
    blocks = [home.registry.reserve(Csn(7), ONCE) for _ in range(3)]
    assert len(home.registry.reserved) == 2 * ONCE <= MOST
    with pytest.raises(UnknownTransactionError):
        home.use(blocks[0])
    home.use(blocks[1])
    for count in (0, -1, ONCE + 1):
        with pytest.raises(BadRequestError, match=rf"count={count} is outside 1..8 .tids_reserved_once_"):
            home.registry.reserve(Csn(7), count)


def test_a_full_home_keeps_the_tid(home: Home) -> None:
    """The refusal of a home with too many open transactions may be repeated with the same tid."""
    first = home.registry.reserve(Csn(7), 1)
    open_ones = [home.registry.begin(Csn(7)) for _ in range(4)]
    with pytest.raises(UnavailableError, match="transactions_max=4"):
        home.use(first)
    home.registry.close(open_ones[0], TxState.ROLLED_BACK)
    home.use(first)


def test_it_holds_no_history(home: Home) -> None:
    """The CSN of a reserved tid may be old; its transaction reads at what is applied when it comes."""
    first = home.registry.reserve(Csn(7), 2)
    tx = home.use(first, reached=50)
    assert home.registry.oldest_snapshot(Csn(60)) == 50
    assert tx.begin_statement(Csn(55)) == 55
    assert home.registry.long_snapshots() == []
    home.registry.begin(Csn(40))
    assert home.registry.oldest_snapshot(Csn(60)) == 40


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_events(home: Home, seed: int) -> None:
    """In any order of events a tid is used at most once, and never after its withdrawal or its end."""
    chance = random.Random(seed)
    blocks: dict[Tid, float] = {}
    gone: set[Tid] = set()
    for _ in range(400):
        match chance.randrange(4):
            case 0:
                first = home.registry.reserve(Csn(chance.randrange(5)), count := chance.randint(1, ONCE))
                blocks |= {nth(first, number): home.now + KEPT_S for number in range(count)}
            case 1:
                home.now += chance.choice([0.0, 1.0, KEPT_S])
            case 2 if blocks:
                home.registry.withdraw(tid := chance.choice(list(blocks)))
                gone.add(tid)
            case 3 if blocks:
                tid = chance.choice(list(blocks))
                try:
                    home.registry.close(home.use(tid), TxState.ROLLED_BACK)
                except UnknownTransactionError:
                    continue
                assert tid not in gone
                assert home.now < blocks[tid]
                gone.add(tid)
        assert len(home.registry.reserved) <= MOST
