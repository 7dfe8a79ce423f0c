"""The one loop that retries a commit: how often, after which errors, and what it raises in the end."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId, Tid
from tidelock.csnlog.core.model import TidRecord
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.log import Proposal
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    LabelExistsError,
    MembersChangedError,
    TableChangedError,
    TidelockError,
    UnavailableError,
)
from tidelock.replica_agent.transactions.ending.settlement import Settlement, retried
from tidelock.replica_agent.transactions.transaction import Transaction, TransactionLease

R1 = ReplicaId("r1")


def transaction(**more: Any) -> Transaction:
    """Return an open transaction of r1."""
    lease = TransactionLease(seconds=1.0, until=1.0)
    return Transaction(tid=Tid(Csn(1), R1, 1, 1), reads_from=Csn(1), begun_at=0.0, lease=lease, **more)


class Attempts:
    """Ends in one error after the other, then in a result."""

    def __init__(self, *errors: TidelockError) -> None:
        self.errors = list(errors)
        self.made = 0

    async def __call__(self) -> str:
        """Make the next one."""
        self.made += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def unknown() -> CommitUnknownError:
    """An answer that was lost."""
    return CommitUnknownError("lost", tid="r1-1-1")


async def test_an_attempt_is_repeated_until_it_ends_otherwise() -> None:
    """Two lost answers cost two more attempts, and the third is the answer."""
    attempts = Attempts(unknown(), unknown())
    assert await retried(attempts, after=(CommitUnknownError,), may_retry=lambda: True) == "done"
    assert attempts.made == 3


async def test_the_bound_ends_the_attempts_with_their_last_error() -> None:
    """One attempt is made in any case; the bound is asked after it."""
    last = unknown()
    attempts = Attempts(unknown(), last)
    left = [True, False]
    with pytest.raises(CommitUnknownError) as raised:
        await retried(attempts, after=(CommitUnknownError,), may_retry=lambda: left.pop(0))
    assert raised.value is last
    assert attempts.made == 2


async def test_any_other_error_ends_the_attempts_at_once() -> None:
    """An error that certainly excludes a commit is raised without another attempt."""
    attempts = Attempts(BadRequestError("no"))
    with pytest.raises(BadRequestError):
        await retried(attempts, after=(CommitUnknownError,), may_retry=lambda: True)
    assert attempts.made == 1


async def test_what_prepares_an_attempt_is_not_repeated() -> None:
    """An error of the preparation ends the attempts, also one of those after which an attempt is repeated."""
    attempts, preparations = Attempts(unknown(), unknown()), Attempts(unknown())

    async def prepare() -> None:
        await preparations()

    with pytest.raises(CommitUnknownError):
        await retried(attempts, after=(CommitUnknownError,), may_retry=lambda: True, between=prepare)
    assert (attempts.made, preparations.made) == (1, 1)


class Refusing:
    """Proposals, labels and a log: the label is taken, for each caller."""

    def __init__(self) -> None:
        self.placed = self.sent = 0

    async def build(self, tx: Transaction, timeout_s: float) -> Proposal:
        """Make the proposal (`ProposalBuilder`)."""
        del timeout_s
        return Proposal(TidRecord(str(tx.tid), label=tx.label, batch=tx.batch), {}, (), tx.label)

    async def place(self, label: str, batch: int | None, tid: str, timeout_s: float) -> None:
        """Judge a label (`Labels`)."""
        del batch, timeout_s
        self.placed += 1
        raise LabelExistsError(f"label {label} was committed by another than {tid}", label=label)

    async def commit(self, proposal: Proposal, *, timeout_s: float) -> Committed:
        """Commit (`CsnLog`), and find that the label is taken."""
        del timeout_s
        self.sent += 1
        raise LabelExistsError(f"label {proposal.label} exists", label=proposal.label)


class Slow:
    """Proposals whose copies take long, and a log that says how long it may take.

    Args:
        took_s: How long the copies take, each time.
    """

    def __init__(self, took_s: float) -> None:
        self.took_s, self.now_s = took_s, 0.0
        self.left_s: list[float] = []

    async def build(self, tx: Transaction, timeout_s: float) -> Proposal:
        """Make the copies (`ProposalBuilder`)."""
        assert timeout_s == 30.0
        self.now_s += self.took_s
        return Proposal(TidRecord(str(tx.tid)), {}, roster=1)

    async def count_again(self, tx: Transaction, proposal: Proposal, timeout_s: float) -> Proposal:
        """Count the copies (`ProposalBuilder`)."""
        del tx
        assert timeout_s == 29.0
        self.now_s += self.took_s
        return msgspec.structs.replace(proposal, roster=2)

    async def commit(self, proposal: Proposal, *, timeout_s: float) -> Committed:
        """Commit (`CsnLog`); at first the members have changed."""
        self.left_s.append(timeout_s)
        self.now_s += 1.0
        if proposal.roster == 1:
            raise MembersChangedError("the roster has changed", version=1)
        return Committed(Csn(7), 7000)


@pytest.mark.parametrize("took_s", [600.0, 29.9], ids=["twenty times as long", "all of the time"])
async def test_copies_that_took_long_take_no_time_from_the_log(took_s: float) -> None:
    """They were waited for as long as they came along; then the rest has the time that it had."""
    world: Any = Slow(took_s)
    unused = cast("Any", None)
    settlement = Settlement(
        settings=settings(), log=world, proposals=world, labels=unused, validation=unused, order=unused,
        clock=lambda: world.now_s,
    )  # fmt: skip
    done = await settlement.settle(transaction(), deadline=30.0)
    assert (done.csn, world.now_s) == (7, 2 * took_s + 2)
    assert world.left_s == pytest.approx([30.0, 29.0])


@pytest.mark.parametrize(("batch", "sent"), [(None, 1), (7, 0)])
async def test_a_label_that_is_judged_as_taken_is_refused_at_once(batch: int | None, sent: int) -> None:
    """The label is read once; a batch is judged before anything is sent, another label after the refusal."""
    world: Any = Refusing()
    settlement = Settlement(
        settings=settings(), log=world, proposals=world, labels=world, validation=cast("Any", None),
        order=cast("Any", None), clock=lambda: 0.0,
    )  # fmt: skip
    tx = transaction(label="etl", batch=batch)
    with pytest.raises(LabelExistsError, match="committed by another"):
        await settlement.settle(tx, deadline=1.0)
    assert (world.placed, world.sent) == (1, sent)


class Changing(Refusing):
    """A log in which the roster changes twice before the commit lands, and copies that count again."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[int | None] = []

    async def build(self, tx: Transaction, timeout_s: float) -> Proposal:
        """Make the proposal (`ProposalBuilder`)."""
        del timeout_s
        return Proposal(TidRecord(str(tx.tid), holders=(R1, ReplicaId("r2"))), {}, roster=1)

    async def count_again(self, tx: Transaction, proposal: Proposal, timeout_s: float) -> Proposal:
        """Count the copies (`ProposalBuilder`)."""
        del tx, timeout_s
        self.counted.append(proposal.roster)
        record = TidRecord(proposal.tid, holders=(R1, ReplicaId("r3")))
        return msgspec.structs.replace(proposal, record=record, roster=(proposal.roster or 0) + 1)

    async def commit(self, proposal: Proposal, *, timeout_s: float) -> Committed:
        """Commit (`CsnLog`)."""
        del timeout_s
        self.sent += 1
        if proposal.roster != 3:
            raise MembersChangedError("the roster has changed", version=proposal.roster)
        assert proposal.record.holders == (R1, "r3")
        return Committed(Csn(9), 1)


async def test_copies_are_counted_again_after_a_change_of_the_members() -> None:
    """The commit goes on with the new count; the client hears nothing of it."""
    world: Any = Changing()
    settlement = Settlement(
        settings=settings(), log=world, proposals=world, labels=world, validation=cast("Any", None),
        order=cast("Any", None), clock=lambda: 0.0,
    )  # fmt: skip
    tx = transaction()
    assert (await settlement.settle(tx, deadline=1.0)).csn == 9
    assert (world.counted, world.sent) == ([1, 2], 3)


class Ordering:
    """A home that learns, or does not learn in time, what has become of a table (`DefinitionOrder`)."""

    def __init__(self, reason: TidelockError | None) -> None:
        self.reason = reason
        self.asked = 0

    async def place(self, tx: Transaction, timeout_s: float) -> int:
        """Look at the tables at the end of the log."""
        del tx
        assert timeout_s > 0
        self.asked += 1
        if self.reason is not None:
            raise self.reason
        return 1


DROPPED = TableChangedError("table default.t was dropped", table="default.t")


@pytest.mark.parametrize(
    ("refusal", "reason", "told", "asked"),
    [
        (TableChangedError("tid 1: another definition"), DROPPED, "was dropped", 1),
        (TableChangedError("tid 1: another definition"), UnavailableError("too late"), "tid 1", 1),
        (TableChangedError("tid 1: another definition"), None, "tid 1", 1),
        (BadRequestError("no"), DROPPED, "no", 0),
    ],
)
async def test_a_refusal_says_what_has_happened_to_the_table(
    refusal: TidelockError, reason: TidelockError | None, told: str, asked: int
) -> None:
    """The log says that a definition is another one; the home looks at what it is now."""
    order, unused = Ordering(reason), cast("Any", None)
    settlement = Settlement(
        settings=settings(), log=unused, proposals=unused, labels=unused, validation=unused,
        order=cast("Any", order), clock=lambda: 0.0,
    )  # fmt: skip
    tx = transaction()
    assert told in (await settlement.explained(tx, refusal)).message
    assert order.asked == asked
