"""Statements that depend on existing rows run one at a time in a transaction; changes of keys are refused."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pyarrow as pa
import pytest

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId
from tidelock.errors import BadRequestError, DuplicateKeyError, TableChangedError, TransactionClosedError
from tidelock.replica_agent.sql.mutation import Action, DeleteRows, MergeRows, UpdateRows
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.derived import fits
from tidelock.replica_agent.transactions.statements.unique import for_unique_key
from tidelock.replica_agent.transactions.transaction import Isolation, TxState
from tidelock.table_columns import Column

COLUMNS = pa.schema([pa.field("a", pa.int64(), False), pa.field("b", pa.int64(), False), ("v", pa.int64())])
KEYED = TableSchema.from_request("t", COLUMNS, properties={"unique_key": "a,b"})
PLAIN = TableSchema.from_request("t", COLUMNS)


@pytest.fixture
def transactions() -> Transactions:
    """Transactions of one replica."""
    return Transactions(ReplicaId("r1"), 1, settings(), time.monotonic)


async def test_one_after_the_other(transactions: Transactions) -> None:
    """A statement inside of another goes on; one beside it waits, and is seen by the seal."""
    tx = transactions.begin(Csn(2))
    order: list[str] = []
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with transactions.removing(tx):
            async with transactions.removing(tx):
                inside.set()
                await go_on.wait()
            assert tx.statements.running == {asyncio.current_task(), waiting}
            order.append("first")

    async def second() -> None:
        await inside.wait()
        async with transactions.removing(tx):
            order.append("second")

    running, waiting = asyncio.create_task(first()), asyncio.create_task(second())
    await inside.wait()
    while len(tx.statements.running) < 2:  # noqa: ASYNC110 - nothing tells of a task that waits
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(running, waiting)
    assert order == ["first", "second"]
    assert not tx.statements.running
    assert not tx.statements.half_applied


async def test_the_next_one_does_not_run_after_a_failure(transactions: Transactions) -> None:
    """The changes of a failed statement can only be rolled back; the one that waited for it never begins."""
    tx = transactions.begin(Csn(2))

    async def failing() -> None:
        async with transactions.removing(tx):
            await asyncio.sleep(0)
            raise DuplicateKeyError("twice")

    async def next_one() -> None:
        async with transactions.removing(tx):
            raise AssertionError("it began")

    first, second = await asyncio.gather(failing(), next_one(), return_exceptions=True)
    assert isinstance(first, DuplicateKeyError)
    assert isinstance(second, TransactionClosedError)
    assert (tx.state, tx.statements.half_applied, tx.statements.running) == (TxState.FAILED, True, set())


@pytest.mark.parametrize("sealed", [False, True])
async def test_a_statement_that_is_cut(transactions: Transactions, sealed: bool) -> None:
    """By its client it ends as cancelled; by the seal it says that the transaction is closed."""
    tx = transactions.begin(Csn(2))

    async def endless() -> None:
        async with transactions.removing(tx):
            await asyncio.Event().wait()

    task = asyncio.create_task(endless())
    await asyncio.sleep(0)
    if sealed:
        tx.ending.seal()
        await tx.statements.cut()
    task.cancel()
    with pytest.raises(TransactionClosedError if sealed else asyncio.CancelledError):
        await task
    assert tx.statements.half_applied
    assert tx.state is (TxState.SEALED if sealed else TxState.FAILED)


def test_a_transaction_goes_by_one_definition(transactions: Transactions) -> None:
    """Under read committed too: an insert that knew of no dependent cannot hide behind one that does."""
    tx = transactions.begin(Csn(2), isolation=Isolation.READ_COMMITTED)
    tx.use(TableId("default.t"), 0)
    tx.use(TableId("default.t"), 0)
    with pytest.raises(TableChangedError):
        tx.use(TableId("default.t"), 1)


@pytest.mark.parametrize(
    "action",
    [
        UpdateRows({"v": "a"}),
        DeleteRows("a = 1"),
        MergeRows("", ("b", "a"), update=True, insert=True, upsert=True),
        MergeRows("", ("a", "b"), update={"v": "0"}, insert={"a": "source.a", "b": "source.b", "v": "1"}),
    ],
)
def test_statements_with_keys_that_stay_run_on_any_table(action: Action) -> None:
    """Statements that give no row the key of another run on any table; a merge by the key in its order."""
    kept = for_unique_key(KEYED, action)
    assert for_unique_key(PLAIN, action) is action
    assert kept == (
        msgspec.structs.replace(action, on=("a", "b")) if isinstance(action, MergeRows) else action
    )


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (UpdateRows({"v": "0", "b": "b"}), "b is a column .* an update"),
        (MergeRows("", ("a",), update=True), "unique by a, b; .* found a$"),
        (MergeRows("", ("a", "b"), update={"a": "1"}), "a is a column .* a merge"),
        (
            MergeRows("", ("a", "b"), insert={"a": "source.b", "b": "source.b"}),
            "a is .* when_not_matched_insert",
        ),
    ],
)
def test_keys_that_would_change(action: Action, message: str) -> None:
    """Others are refused by name, for a table with a unique key only."""
    assert for_unique_key(PLAIN, action) is action
    with pytest.raises(BadRequestError, match=message):
        for_unique_key(KEYED, action)


@pytest.mark.parametrize(
    ("column", "found", "fitting"),
    [
        ("bigint", pa.decimal128(38, 0), True),
        ("bigint", pa.int8(), True),
        ("bigint", pa.decimal128(38, 1), False),
        ("bigint", pa.float64(), False),
        ("decimal(9,2)", pa.decimal128(38, 2), True),
        ("decimal(9,2)", pa.int64(), True),
        ("decimal(9,2)", pa.decimal128(9, 3), False),
        ("double", pa.float32(), True),
        ("float", pa.float64(), False),
        ("string", pa.string(), True),
        ("string", pa.int64(), False),
        ("date", pa.timestamp("us"), False),
        ("timestamp", pa.timestamp("us", tz="UTC"), True),
        ("timestamp", pa.timestamp("us"), False),
    ],
)
def test_columns_of_derived_rows(column: str, found: pa.DataType, fitting: bool) -> None:
    """Whole numbers may be of any size, since each is checked when it comes; nothing is rounded."""
    assert fits(Column("c", column), found) is fitting
