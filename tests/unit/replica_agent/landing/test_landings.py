"""Landings: who departs together, what is answered before the commit, and what is never given up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.support.aio import until
from tests.support.rows import settings, stream
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import TidRecord
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.log import Proposal
from tidelock.errors import (
    CommitUnknownError,
    FencedError,
    NotEnoughReplicasError,
    SchemaMismatchError,
    TableChangedError,
    TableModeError,
    TidelockError,
    TooLargeError,
    TooManyPartsError,
    UnavailableError,
)
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.landing.landings import Landings
from tidelock.replica_agent.storage.pack_writer import StagedBytes
from tidelock.replica_agent.storage.row_streams import CheckedRows, check_small
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.ending.commit_batching import GroupCommitGate
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction, TxState
from tidelock.replication.core.model import PartMeta
from tidelock.wire.writes import LandAnswer

R1 = ReplicaId("r1")
LANDS = TableId("default.lands")
ARROW = pa.schema([("k", pa.int64())])
DONE = Committed(Csn(9), 1)
SOON_S = 5.0


def soon() -> float:
    """Return a deadline."""
    return time.monotonic() + SOON_S


def rows(numbers: Iterable[int]) -> pa.RecordBatch:
    """Return one row for each number."""
    return pa.record_batch({"k": list(numbers)}, schema=ARROW)


class World:
    """The parts beside the landings; copies and commits end as the test says."""

    def __init__(self, **changed: Any) -> None:
        self.settings = settings(**changed)
        self.transactions = Transactions(R1, 1, self.settings, time.monotonic)
        self.schemas = {
            "lands": TableSchema.from_request("lands", ARROW, properties={"landing": "on"}),
            "plain": TableSchema.from_request("plain", ARROW),
        }
        self.versions = {LANDS: 0}
        self.proposal: Proposal | None = None
        #: The ends of copies and commits, one after the other; the last one stays.
        self.copied: list[Exception | None] = [None]
        self.ends: list[Exception | Committed] = [DONE]
        self.refused: TidelockError | None = None
        self.may_commit = asyncio.Event()
        self.may_commit.set()
        self.lives = self.follows = True
        self.departed: list[tuple[str, list[int], dict[TableId, Csn]]] = []
        #: The transactions whose rows were brought in another one; the ends of that, of which the last stays.
        self.rescued: list[str] = []
        self.settled = [True]
        #: The version that each request finds; the last one stays.
        self.found = [0]
        self.proposed: list[str] = []
        world = cast("Any", self)
        self.settlement = self.proposals = self.closer = self.commits = world
        self.gate, self.clock, self.reached = GroupCommitGate(1.0), time.monotonic, Csn(5)
        self.landings = Landings(
            settings=self.settings, transactions=self.transactions, tables=world, waiters=world,
            pressure=world, staging=world, commits=world, upserts=world, rescue=self.rescue,
            metrics=Metrics(),
        )  # fmt: skip

    def named(self, name: str, at: Csn) -> tuple[int, TableSchema]:
        """Return a table (`Tables`)."""
        assert at == self.reached
        version = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        return version, self.schemas[name.removeprefix("default.")]

    async def checked(self, version: int, schema: TableSchema, body: bytes) -> CheckedRows:
        """Check rows (`RowStaging`)."""
        return check_small(body, schema, version, self.settings)

    async def admit(self, *_: object) -> None:
        """Hold an insert back (`BackPressure`)."""
        if self.refused is not None:
            raise self.refused

    async def require_followers(self, deadline: float) -> None:
        """Delay a commit (`Commits`)."""
        assert deadline > time.monotonic()

    async def encode(
        self, tx: Transaction, owners: Sequence[Transaction], landed: dict[TableId, Csn]
    ) -> None:
        """Encode rows (`RowStaging`)."""
        assert [tx] == [*owners]
        assert tx.state is TxState.SEALED
        assert tx.staged.tables == {one.schema.id: one.version for one in tx.staged.rows}
        self.departed.append((str(tx.tid), [one.count for one in tx.staged.rows], landed))
        for number, one in enumerate(self.transactions.take_rows(tx)):
            table = one.schema.id
            part = PartMeta(
                PartId(f"r1-1-{number}"), table, "", 1, 9, "c", kind="landed", columns_csn=landed[table]
            )
            self.transactions.add(tx, StagedBytes(part, b"part", tx.tid))

    async def build(self, tx: Transaction, timeout_s: float) -> Any:
        """Make copies (`ProposalBuilder`)."""
        assert timeout_s == self.settings.commit_timeout_s
        end = self.copied.pop(0) if len(self.copied) > 1 else self.copied[0]
        if end is not None:
            raise end
        return Proposal(TidRecord(str(tx.tid), ()), dict(tx.staged.tables))

    def version_since(self, table: TableId, since: Csn, at: Csn) -> int | None:
        """Return the version of a table that was not dropped (`Tables`)."""
        assert since <= at == self.reached
        return self.versions.get(table)

    async def rescue(self, tid: Tid) -> bool:
        """Bring the rows of a transaction that the log refuses (`Rescue.settle`)."""
        assert self.transactions.find(str(tid)).state is TxState.SEALED
        self.rescued.append(str(tid))
        return self.settled.pop(0) if len(self.settled) > 1 else self.settled[0]

    async def propose(self, tx: Transaction, proposal: Proposal, deadline: float) -> Committed:
        """Commit (`Settlement`)."""
        assert (proposal.tid, deadline > time.monotonic()) == (str(tx.tid), True)
        self.proposed.append(str(tx.tid))
        self.proposal = proposal
        await self.may_commit.wait()
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if isinstance(end, Committed):
            return end
        raise end

    def require_following(self) -> None:
        """Require that the log decides now (`Settlement`)."""
        if not self.follows:
            raise UnavailableError("no")

    def log_lives(self) -> bool:
        """Tell whether the log decides (`Settlement`)."""
        return self.lives

    async def commit(self, tx: Transaction, done: Committed) -> None:
        """Close a transaction (`TransactionCloser`)."""
        self.transactions.close(tx, TxState.COMMITTED, outcome=done)

    async def roll_back(self, tx: Transaction, error: TidelockError | None, *, pushed: bool) -> None:
        """Close a transaction (`TransactionCloser`)."""
        assert pushed == bool(self.departed)
        self.transactions.close(tx, TxState.ROLLED_BACK, error=error)

    async def land(self, *counts: int, timeout_s: float = SOON_S) -> list[LandAnswer | BaseException]:
        """Land so many rows each, at once."""
        bodies = [stream(rows(range(count))) for count in counts]
        until_s = time.monotonic() + timeout_s
        calls = (self.landings.land("lands", body, until_s) for body in bodies)
        return await asyncio.gather(*calls, return_exceptions=True)


async def test_those_that_wait_depart_together() -> None:
    """One transaction has all their rows, as rows that land; each is answered with its own."""
    world = World()
    answers = await world.land(1, 2, 3)
    [(tid, counts, landed)] = world.departed
    assert (sorted(counts), landed) == ([1, 2, 3], {LANDS: 5})
    assert answers == [LandAnswer(count, tid, None) for count in (1, 2, 3)]
    await until(lambda: world.transactions.find(tid).state is TxState.COMMITTED)


async def test_the_answer_comes_before_the_commit() -> None:
    """Rows are answered while the log decides; the next ones depart meanwhile, up to the bound."""
    world = World(landing_ahead_max=2)
    world.may_commit.clear()
    for _ in range(2):
        [answer] = await world.land(1)
        assert isinstance(answer, LandAnswer)
    [refused] = await world.land(1, timeout_s=0.1)
    assert isinstance(refused, UnavailableError)
    assert "landing_ahead_max" in refused.message
    assert world.landings._waiting_bytes == 0
    world.may_commit.set()
    [answer] = await world.land(1)
    assert isinstance(answer, LandAnswer)
    await until(lambda: not world.transactions.live())
    assert len(world.departed) == 3


async def test_a_departure_takes_what_one_transaction_may_have() -> None:
    """Rows beyond `shared_parts_bytes_max` take the next departure."""
    world = World(shared_parts_bytes_max=100)
    answers = await world.land(10, 10, 1, 1)
    assert all(isinstance(answer, LandAnswer) for answer in answers)
    assert [counts for _, counts, _ in world.departed] == [[10], [10, 1, 1]]


async def test_a_departure_has_rows_of_one_version() -> None:
    """A table has changed between two requests: rows of before and of now have other columns."""
    world = World()
    world.found = [0, 0, 1, 1]
    answers = await world.land(1, 2, 3, 4)
    assert all(isinstance(answer, LandAnswer) for answer in answers)
    assert [counts for _, counts, _ in world.departed] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "error", [UnavailableError("no answer"), FencedError("fenced"), RuntimeError("unforeseen")]
)
async def test_acknowledged_rows_are_proposed_until_they_are_committed(error: Exception) -> None:
    """No error ends that while the log lives."""
    world = World()
    world.ends = [error, error, DONE]
    [answer] = await world.land(1)
    assert isinstance(answer, LandAnswer)
    assert answer.tid is not None
    await until(lambda: world.transactions.find(answer.tid or "").state is TxState.COMMITTED)
    assert world.proposed == [answer.tid] * 3


async def test_acknowledged_rows_are_proposed_for_the_definition_of_now() -> None:
    """Columns of the table have changed meanwhile; at first this replica has not heard of it."""
    world = World()
    world.ends = [TableChangedError("changed")]
    [answer] = await world.land(1)
    assert isinstance(answer, LandAnswer)
    await until(lambda: len(world.proposed) == 2)
    world.versions, world.ends = {LANDS: 3}, [TableChangedError("changed"), DONE]
    await until(lambda: world.transactions.find(answer.tid or "").state is TxState.COMMITTED)
    assert world.proposal is not None
    assert (world.proposal.tables, world.rescued) == ({LANDS: 3}, [])


async def test_acknowledged_rows_go_with_the_table_that_was_dropped() -> None:
    """Those of the other tables are brought in another transaction, and this one is proposed no more.

    Its manifest would name the parts of the dropped table.
    """
    world = World()
    world.ends = [TableChangedError("dropped")]
    world.settled = [False, True]
    world.may_commit.clear()
    [answer] = await world.land(1)
    assert isinstance(answer, LandAnswer)
    world.versions = {}
    world.may_commit.set()
    await until(lambda: not world.landings._departures)
    assert world.transactions.find(answer.tid or "").state is TxState.ROLLED_BACK
    assert (world.proposed, world.rescued) == ([answer.tid], [answer.tid] * 2)


async def test_rows_whose_table_was_dropped_while_they_waited_are_refused() -> None:
    """They are not acknowledged; those of other tables depart."""
    world = World(landing_ahead_max=1)
    world.may_commit.clear()
    await world.land(1)
    waiting = asyncio.create_task(world.land(2))
    await until(lambda: world.landings._waiting_bytes > 0)
    world.versions, world.reached = {}, Csn(7)
    world.may_commit.set()
    [refused] = await waiting
    assert isinstance(refused, TableChangedError)
    assert len(world.departed) == 1


async def test_rows_of_a_dropped_table_are_left_when_the_log_has_ended() -> None:
    """Their holders bring the others then."""
    world = World()
    world.ends, world.settled, world.versions = [TableChangedError("dropped")], [False], {LANDS: 0}
    world.may_commit.clear()
    [answer] = await world.land(1)
    world.versions = {}
    world.may_commit.set()
    await until(lambda: len(world.rescued) >= 1)
    world.lives = False
    await until(lambda: not world.landings._departures)
    [left] = world.transactions.live()
    assert left.state is TxState.SEALED
    assert isinstance(answer, LandAnswer)


async def test_acknowledged_rows_are_left_when_the_log_has_ended() -> None:
    """Nothing is rolled back then: who holds the parts brings them."""
    world = World()
    world.lives = False
    [answer] = await world.land(1)
    assert isinstance(answer, LandAnswer)
    await until(lambda: not world.landings._departures)
    [left] = world.transactions.live()
    assert (left.state, world.proposed) == (TxState.SEALED, [])


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (NotEnoughReplicasError("1 of 2 copies"), "1 of 2 copies"),
        (UnavailableError("no room"), "no room"),
        (RuntimeError("strange"), "strange"),
    ],
)
async def test_rows_with_too_few_copies_are_in_doubt(error: Exception, word: str) -> None:
    """The answer says so; the transaction is rolled back, and the next one is not touched by that."""
    world = World()
    world.copied = [error, None]
    [unknown] = await world.land(1)
    assert isinstance(unknown, CommitUnknownError)
    assert word in unknown.message
    [answer] = await world.land(1)
    assert isinstance(answer, LandAnswer)


async def test_a_home_that_does_not_follow_the_log_acknowledges_nothing() -> None:
    """Its fence may have been raised while the copies were made."""
    world = World()
    world.follows = False
    [unknown] = await world.land(1)
    assert isinstance(unknown, CommitUnknownError)
    assert world.proposed == []


async def test_requests_that_wait_share_one_departure() -> None:
    """However many come and give up while the bound is reached, one departure waits for them."""
    world = World(landing_ahead_max=1)
    world.may_commit.clear()
    await world.land(1)
    for _ in range(5):
        [refused] = await world.land(1, timeout_s=0.01)
        assert isinstance(refused, UnavailableError)
    assert len(world.landings._departures) == 2
    world.may_commit.set()
    await until(lambda: not world.landings._departures)
    assert len(world.departed) == 1


async def test_no_transaction_can_be_begun() -> None:
    """Then nothing is written, for certain."""
    world = World(transactions_max=1)
    world.transactions.begin(Csn(1))
    [refused] = await world.land(1)
    assert type(refused) is UnavailableError
    assert world.departed == []


async def test_refusals_before_the_rows_board() -> None:
    """Each names its reason, and nothing departs."""
    world = World(inline_part_bytes_max=10_000)
    with pytest.raises(TableModeError, match="no landing table"):
        await world.landings.land("plain", stream(rows([1])), soon())
    with pytest.raises(SchemaMismatchError):
        await world.landings.land("lands", stream(pa.record_batch({"other": [1]})), soon())
    with pytest.raises(TooLargeError, match="inline_part_bytes_max"):
        await world.landings.land("lands", bytes(10_001), soon())
    world.refused = TooManyPartsError("too many parts")
    assert [type(one) for one in await world.land(1)] == [TooManyPartsError]
    assert await world.land(0) == [LandAnswer(0, None, None)]
    assert world.departed == []


async def test_waiting_rows_have_a_bound() -> None:
    """Beyond `staged_memory_bytes_max` rows are refused, not kept."""
    world = World(staged_memory_bytes_max=1000, landing_ahead_max=1)
    world.may_commit.clear()
    await world.land(1)
    waiting = asyncio.create_task(world.land(100, timeout_s=SOON_S))
    await until(lambda: world.landings._waiting_bytes > 0)
    [refused] = await world.land(100)
    assert isinstance(refused, UnavailableError)
    assert "staged_memory_bytes_max" in refused.message
    world.may_commit.set()
    assert all(isinstance(one, LandAnswer) for one in await waiting)
