"""A transaction that is validated, at a home whose other commits overtake it all the time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId, Tid
from tidelock.csnlog.core.model import TidRecord
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.log import Proposal
from tidelock.errors import HeadMovedError, TransactionClosedError, UnavailableError
from tidelock.replica_agent.transactions.ending.head_turns import HeadTurns
from tidelock.replica_agent.transactions.ending.settlement import Settlement
from tidelock.replica_agent.transactions.transaction import Isolation, Transaction, TransactionLease

R1 = ReplicaId("r1")
_numbers = itertools.count(1)


def transaction(isolation: Isolation = Isolation.SNAPSHOT) -> Transaction:
    """Return an open transaction of r1."""
    lease = TransactionLease(seconds=1.0, until=1.0)
    tid = Tid(Csn(1), R1, 1, next(_numbers))
    return Transaction(tid=tid, reads_from=Csn(1), begun_at=0.0, lease=lease, isolation=isolation)


class Home:
    """A home whose log takes a moment for each step, and moves its head at each commit.

    Args:
        head_turn_s: The setting.
        read_s: How long a validation takes.
    """

    def __init__(self, head_turn_s: float = 60.0, read_s: float = 0.005) -> None:
        self.head, self.read_s = 0, read_s
        self.unavailable = False
        unused = cast("Any", None)
        self.settlement = Settlement(
            settings=settings(head_turn_s=head_turn_s), log=cast("Any", self),
            proposals=cast("Any", self), labels=unused, validation=cast("Any", self), order=unused,
            clock=lambda: asyncio.get_running_loop().time(),
        )  # fmt: skip

    async def build(self, tx: Transaction, timeout_s: float) -> Proposal:
        """Make a proposal (`ProposalBuilder`)."""
        del timeout_s
        return Proposal(TidRecord(str(tx.tid)), {})

    async def validate(self, tx: Transaction, timeout_s: float) -> int:
        """Read the head, then the log (`Validation`)."""
        del tx, timeout_s
        head, unavailable = self.head, self.unavailable
        await asyncio.sleep(self.read_s)
        if unavailable:
            raise UnavailableError("the end of the log was not applied here in time")
        return head

    async def commit(self, proposal: Proposal, *, timeout_s: float) -> Committed:
        """Commit (`CsnLog`), unless another one has come first."""
        del timeout_s
        await asyncio.sleep(0.001)
        if proposal.head_version not in {None, self.head}:
            raise HeadMovedError(f"{proposal.tid}: another commit came first")
        self.head += 1
        return Committed(Csn(self.head), 1)

    async def settle(self, tx: Transaction, within_s: float) -> Committed:
        """Let the log decide a transaction."""
        return await self.settlement.settle(tx, asyncio.get_running_loop().time() + within_s)

    async def write(self) -> None:
        """Commit transactions that are not validated, one after the other, for good."""
        while True:
            await self.settle(transaction(), 5.0)


@pytest.fixture
async def writers() -> AsyncIterator[list[asyncio.Task[None]]]:
    """Give a list of tasks that are ended after the test."""
    tasks: list[asyncio.Task[None]] = []
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_that_is_overtaken_comes_first_in_its_turn(writers: list[asyncio.Task[None]]) -> None:
    """It needs five times as long as a commit of the eight writers, and one turn is enough."""
    home = Home()
    writers += [asyncio.create_task(home.write()) for _ in range(8)]
    await asyncio.sleep(0.02)
    before = home.head
    done = await home.settle(transaction(Isolation.SERIALIZABLE), 5.0)
    assert done.csn - before < 100
    after = home.head
    await asyncio.sleep(0.02)
    assert home.head > after  # the writers go on


async def test_all_that_are_overtaken_come_to_their_turn(writers: list[asyncio.Task[None]]) -> None:
    """Ten of them at once overtake each other too, and each is committed once."""
    home = Home()
    writers += [asyncio.create_task(home.write()) for _ in range(4)]
    done = await asyncio.gather(*(home.settle(transaction(Isolation.SERIALIZABLE), 5.0) for _ in range(10)))
    assert len({one.csn for one in done}) == 10


async def test_a_turn_holds_others_back_for_a_bounded_time(writers: list[asyncio.Task[None]]) -> None:
    """A validation that takes long does not stop the home: the writers go on, and it is overtaken again."""
    home = Home(head_turn_s=0.02, read_s=0.2)
    writers.append(asyncio.create_task(home.write()))
    with pytest.raises(HeadMovedError, match="another commit came first"):
        await home.settle(transaction(Isolation.SERIALIZABLE), 0.5)
    assert home.head > 50


async def test_one_that_is_never_first_says_that_it_was_overtaken(
    writers: list[asyncio.Task[None]],
) -> None:
    """The end of its time says nothing of the cause; that other commits came first does."""
    home = Home(head_turn_s=0.001)
    writers.append(asyncio.create_task(home.write()))
    serializable = asyncio.create_task(home.settle(transaction(Isolation.SERIALIZABLE), 0.1))
    await asyncio.sleep(0.05)
    home.unavailable, home.read_s = True, 0.1
    with pytest.raises(HeadMovedError):
        await serializable


async def test_an_error_in_time_is_told_as_it_is(writers: list[asyncio.Task[None]]) -> None:
    """A log that cannot be read ends the commit at once, overtaken or not."""
    home = Home(head_turn_s=0.001)
    writers.append(asyncio.create_task(home.write()))
    serializable = asyncio.create_task(home.settle(transaction(Isolation.SERIALIZABLE), 60.0))
    await asyncio.sleep(0.05)
    home.unavailable = True
    with pytest.raises(UnavailableError):
        await serializable


async def test_waits_for_a_turn_have_an_end_and_can_be_cut() -> None:
    """A wait that is called off, and one whose time is over, leave the order to the next."""
    turns, first = HeadTurns(60.0), transaction()
    async with turns.taken(first, 1.0):
        await turns.others_over(first)
        with pytest.raises(TimeoutError):
            async with turns.taken(transaction(), 0.01):
                pytest.fail("two have a turn")
        cut = asyncio.create_task(_wait_as(turns, cut_off := transaction()))
        held = asyncio.create_task(turns.others_over(transaction()))
        await asyncio.sleep(0.01)
        cut_off.ending.call_off()
        with pytest.raises(TransactionClosedError):
            await cut
        assert not held.done()
    await held
    async with turns.taken(transaction(), 0.0):
        pass


async def _wait_as(turns: HeadTurns, tx: Transaction) -> None:
    async with tx.cuttable_wait():
        await turns.others_over(tx)
