"""Upserts of landing tables: the last row of a key wins, conflicts are met again, refusals hit their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import settings, stream
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.results import Committed
from tidelock.errors import (
    CommitUnknownError,
    CorruptError,
    FencedError,
    NotCommittedError,
    NotEnoughReplicasError,
    PartDamagedError,
    SerializationConflictError,
    TidelockError,
    TooLargeError,
    TransactionClosedError,
    UnavailableError,
)
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.landing.upserts import LandingUpserts, last_of_each_key
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.ending.commit import WaitFor
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction, TxState
from tidelock.wire.writes import LandAnswer

ARROW = pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.int64())])
SCHEMA = TableSchema.from_request(
    "keyed", ARROW, properties={"landing": "on", "unique_key": "k", "on_duplicate": "replace"}
)
WIDER = TableSchema.from_request(
    "keyed", ARROW.append(pa.field("w", pa.int64())), properties=SCHEMA.properties
)
DONE = Committed(Csn(9), 1)
POISON = "poison"


class World:
    """The parts beside the upserts: statements that meet conflicts, refuse poison, and keep what they saw."""

    def __init__(self, **changed: Any) -> None:
        self.settings = settings(**changed)
        self.transactions = Transactions(ReplicaId("r1"), 1, self.settings, time.monotonic)
        self.conflicts = 0
        self.damaged = False
        self.commit_error: TidelockError | None = None
        self.statements: list[list[tuple[str, int]]] = []
        self.reached = Csn(5)
        world = cast("Any", self)
        self.upserts = LandingUpserts(
            settings=self.settings, transactions=self.transactions, waiters=world, mutations=world,
            commits=world, metrics=Metrics(), damage=world, executor=ThreadPoolExecutor(1),
            clock=time.monotonic,
        )  # fmt: skip

    async def insert(
        self, tx: Transaction, schema: TableSchema, body: AsyncIterable[bytes], path: str | None
    ) -> None:
        """Bring rows in by key (`Mutations`)."""
        assert (tx.state, schema in (SCHEMA, WIDER), path) == (TxState.OPEN, True, None)
        if self.conflicts:
            self.conflicts -= 1
            raise SerializationConflictError("another transaction removes the same rows")
        if self.damaged:
            raise CorruptError("wrong bytes", part="r1-1-1")
        table = pa.ipc.open_stream(b"".join([piece async for piece in body])).read_all()
        found = list(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))
        if any(key == POISON for key, _ in found):
            raise TooLargeError("more than a limit")
        self.statements.append(found)

    async def commit(self, tid: object, *, wait: WaitFor, timeout_s: float | None) -> Committed:
        """Commit (`Commits`)."""
        assert (wait, timeout_s) == (WaitFor.HOME, None)
        if self.commit_error is not None:
            raise self.commit_error
        tx = self.transactions.find(str(tid))
        tx.ending.seal()
        self.transactions.close(tx, TxState.COMMITTED, outcome=DONE)
        return DONE

    def met(self, error: BaseException) -> PartDamagedError | None:
        """Have a damaged part fetched again (`DamagedParts`)."""
        return PartDamagedError(error.message) if isinstance(error, CorruptError) else None

    async def roll_back(self, tx: Transaction, error: TidelockError | None) -> None:
        """Roll back (`Commits`)."""
        self.transactions.close(tx, TxState.ROLLED_BACK, error=error)

    async def land(
        self, *rows: list[tuple[str, int]], timeout_s: float = 5.0
    ) -> list[LandAnswer | BaseException]:
        """Land rows, each list by another client at once."""
        bodies = [stream(batch_of(one)) for one in rows]
        until_s = time.monotonic() + timeout_s
        calls = (self.upserts.land(SCHEMA, body, until_s) for body in bodies)
        return await asyncio.gather(*calls, return_exceptions=True)


def batch_of(rows: list[tuple[str, int]]) -> pa.RecordBatch:
    """Return rows as a record batch."""
    return pa.record_batch({"k": [k for k, _ in rows], "v": [v for _, v in rows]}, schema=ARROW)


def table_of(rows: list[tuple[str, int]]) -> pa.Table:
    """Return rows as a table."""
    return pa.Table.from_batches([batch_of(rows)])


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "\0", "ß"]), st.integers(-9, 9))))
def test_the_last_row_of_each_key_stays(rows: list[tuple[str, int]]) -> None:
    """It is at the place where it came; without equal keys nothing changes."""
    kept = last_of_each_key(table_of(rows), ("k",))
    last = {key: at for at, (key, _) in enumerate(rows)}
    expected = [row for at, row in enumerate(rows) if last[row[0]] == at]
    assert list(zip(kept["k"].to_pylist(), kept["v"].to_pylist(), strict=True)) == expected


def test_a_key_of_several_columns() -> None:
    """Rows are equal only if all of its columns are."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.date32()), ("v", pa.int64())])
    table = pa.table({"a": [1, 1, 1], "b": [3, 4, 3], "v": [0, 1, 2]}, schema=schema)
    assert last_of_each_key(table, ("a", "b"))["v"].to_pylist() == [1, 2]


async def test_rows_that_wait_are_one_statement() -> None:
    """Rows that come while one statement runs are the next one; the last row of a key is in it."""
    world = World()
    answers = await world.land([("a", 1)], [("a", 2), ("b", 1)], [("a", 3)])
    assert answers == [LandAnswer(1, None, 9), LandAnswer(2, None, 9), LandAnswer(1, None, 9)]
    assert [row for statement in world.statements for row in statement][-1] == ("a", 3)
    assert len(world.statements) <= 2
    assert not world.transactions.live()
    assert not world.upserts._waiting
    assert not world.upserts._working


async def test_a_statement_has_rows_of_the_same_columns() -> None:
    """The table got a column while they waited."""
    world = World()
    narrow = stream(batch_of([("a", 1)]))
    wide = stream(batch_of([("b", 2)]).append_column("w", pa.array([3])))
    until_s = time.monotonic() + 5.0
    calls = [world.upserts.land(SCHEMA, narrow, until_s) for _ in range(2)]
    calls += [world.upserts.land(WIDER, wide, until_s) for _ in range(2)]
    assert [answer.rows for answer in await asyncio.gather(*calls)] == [1] * 4
    assert {frozenset(statement) for statement in world.statements} == {
        frozenset({("a", 1)}),
        frozenset({("b", 2)}),
    }


async def test_a_conflict_is_met_again() -> None:
    """The same rows are tried until nobody is in the way; each try is rolled back."""
    world = World()
    world.conflicts = 3
    assert await world.land([("a", 1)]) == [LandAnswer(1, None, 9)]
    assert (world.statements, world.transactions.live()) == ([[("a", 1)]], [])


async def test_a_conflict_that_does_not_end() -> None:
    """Rows whose client gives up are not written later, when other rows of their keys may have come."""
    world = World()
    world.conflicts = 1_000_000
    first = asyncio.create_task(world.land([("a", 1)], timeout_s=0.2))
    other = asyncio.create_task(world.land([("b", 1)], timeout_s=5.0))
    [refused] = await first
    assert isinstance(refused, UnavailableError | CommitUnknownError)
    await asyncio.sleep(0.4)  # a statement that ran when it gave up is over
    world.conflicts = 0
    assert await other == [LandAnswer(1, None, 9)]
    assert [row for statement in world.statements for row in statement] == [("b", 1)]


async def test_a_damaged_part_is_fetched_again() -> None:
    """The statement met a damaged part of the table: nothing is written, and clients may try again."""
    world = World()
    world.damaged = True
    answers = await world.land([("a", 1)], [("b", 1)])
    assert {type(answer) for answer in answers} == {PartDamagedError}
    assert not world.transactions.live()


@pytest.mark.parametrize(
    "error",
    [
        NotEnoughReplicasError("1 of 2"),
        NotCommittedError("not now"),
        FencedError("fenced"),
        TransactionClosedError("killed"),
    ],
)
async def test_a_statement_that_may_work_elsewhere(error: TidelockError) -> None:
    """All its rows are certainly not written, and clients may try again; nobody waits for one row alone."""
    world = World()
    world.commit_error = error
    answers = await world.land([("a", 1)], [("b", 1)], [("c", 1)])
    assert {type(answer) for answer in answers} == {UnavailableError}
    assert len(world.statements) <= 2


async def test_a_request_right_behind_the_last_statement() -> None:
    """It is written at once: the work has not ended without a look at it."""
    world = World()
    for number in range(50):
        await world.land([("a", number)])
        assert await world.land([("b", number)], timeout_s=1.0) == [LandAnswer(1, None, 9)]


async def test_rows_that_wait_have_a_bound() -> None:
    """Beyond `staged_memory_bytes_max` they are refused, and those that wait are written."""
    world = World(staged_memory_bytes_max=400)
    answers = await world.land(*([("key", number)] * 5 for number in range(20)))
    kinds = {type(answer) for answer in answers}
    assert kinds == {LandAnswer, UnavailableError}
    assert all("staged_memory_bytes_max" in str(one) for one in answers if isinstance(one, UnavailableError))
    assert world.upserts._waiting_bytes == 0


async def test_refused_rows_do_not_take_others_with_them() -> None:
    """If a statement of several clients is refused, each gets one of its own."""
    world = World()
    first = asyncio.create_task(world.land([("z", 0)]))
    await asyncio.sleep(0)
    good, bad, other = await world.land([("a", 1)], [(POISON, 1)], [("b", 1)])
    assert (good, other) == (LandAnswer(1, None, 9), LandAnswer(1, None, 9))
    assert isinstance(bad, TooLargeError)
    assert await first == [LandAnswer(1, None, 9)]


async def test_an_unknown_commit_is_told() -> None:
    """The rows are not sent again: they may be there."""
    world = World()
    world.commit_error = CommitUnknownError("nobody knows")
    [unknown] = await world.land([("a", 1)])
    assert isinstance(unknown, CommitUnknownError)
    assert world.statements == [[("a", 1)]]


async def test_rows_behind_a_slow_statement() -> None:
    """If they are not under way when their time is over, they are not written, for certain."""
    world = World()
    world.conflicts = 1_000_000
    first = asyncio.create_task(world.land([("a", 1)], timeout_s=0.5))
    await asyncio.sleep(0.05)
    [refused] = await world.land([("b", 1)], timeout_s=0.1)
    assert type(refused) is UnavailableError
    await first
    world.conflicts = 0
    await world.land([("c", 1)])
    assert world.statements[-1] == [("c", 1)]
    assert all(key != "b" for statement in world.statements for key, _ in statement)


@pytest.mark.parametrize("rows", [[]])
async def test_an_empty_stream_is_answered(rows: list[tuple[str, int]]) -> None:
    """It changes nothing."""
    world = World()
    assert last_of_each_key(table_of(rows), ("k",)).num_rows == 0
    assert await world.land(rows) == [LandAnswer(0, None, 9)]
