"""Cancelled tasks of the client with await: what was sent, what becomes of it, and what a program is told."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pyarrow as pa
import pytest

from tests.support.aio import until
from tests.support.replicas.fake_agent import FakeCluster
from tidelock.aio import AsyncDatabase, AsyncStream, AsyncTransaction, connect
from tidelock.aio.threads import NAME
from tidelock.client import Decision, TransactionState
from tidelock.errors import TidelockError, TransactionClosedError

ROWS = pa.table({"k": [1, 2, 3]})
BEGIN = "POST /transactions"


@pytest.fixture
async def aio_db(fake_cluster: FakeCluster) -> AsyncIterator[AsyncDatabase]:
    """A client of two threads that was connected to `r1`."""
    async with connect(fake_cluster["r1"].url, timeout_s=30.0, threads_max=2) as db:
        yield db
        fake_cluster.released.set()


async def cancelled_in(cluster: FakeCluster, request: str, call: Awaitable[object]) -> None:
    """Make a call, cancel its task while the home holds its request `METHOD path`, and let the home go on."""
    home = cluster["r1"]
    home.delays[request], before = 60.0, home.count(request)
    cluster.released.clear()
    task = asyncio.ensure_future(call)
    await until(lambda: home.count(request) > before)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cluster.released.set()


def states(cluster: FakeCluster) -> list[str]:
    """Return the states of all transactions of the home."""
    return [tx.state for tx in cluster["r1"].transactions.values()]


async def busy(db: AsyncDatabase) -> Callable[[], None]:
    """Occupy all threads of a client; return what lets them go."""
    go_on = threading.Event()
    taken = threading.Barrier(db._threads._threads_max + 1, timeout=60)

    def wait() -> None:
        taken.wait()
        go_on.wait(60)

    for _ in range(db._threads._threads_max):
        db._threads.hand_over(wait)
    await asyncio.to_thread(taken.wait)
    return go_on.set


async def test_a_cancelled_call_that_waits_for_a_thread_is_never_made(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase
) -> None:
    """Nothing of it is sent, and its rows are not kept until a thread is free."""
    go_on = await busy(aio_db)
    rows = pa.table({"k": [1]})
    kept = weakref.ref(rows)
    task = asyncio.ensure_future(aio_db.insert("t", rows))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task, rows
    await asyncio.sleep(0)  # the loop keeps the error during this step of the test, and the error its frames
    gc.collect()
    assert kept() is None
    go_on()
    assert (await aio_db.read("t")).num_rows == 0
    assert fake_cluster["r1"].count("POST /commits") == 0


async def test_a_cancelled_autocommit_statement_goes_on_to_its_end(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase
) -> None:
    """Its request has left; the label tells that it took effect."""
    await cancelled_in(fake_cluster, "POST /commits", aio_db.insert("t", ROWS, label="once"))
    await until(lambda: fake_cluster.outcomes)
    found = await aio_db.label("once")
    assert found is not None
    assert (await aio_db.outcome(found.tid)).csn == fake_cluster.csn


@pytest.mark.parametrize("block", [False, True], ids=["await", "async with"])
async def test_a_cancelled_begin_is_rolled_back(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase, block: bool
) -> None:
    """The home has begun a transaction that nobody knows of: it does not wait for the end of its lease."""

    async def begin() -> None:
        if block:
            async with aio_db.begin():
                pytest.fail("the task was cancelled before")
        await aio_db.begin()

    await cancelled_in(fake_cluster, BEGIN, begin())
    await until(lambda: states(fake_cluster) == ["rolled_back"])
    assert not aio_db._twin._connection.leases._due_s


async def test_a_cancelled_snapshot_is_released(fake_cluster: FakeCluster, aio_db: AsyncDatabase) -> None:
    """No replica keeps parts for a snapshot that nobody has."""
    await cancelled_in(fake_cluster, "POST /snapshots", aio_db.read("t"))
    await cancelled_in(fake_cluster, "POST /snapshots", _entered(aio_db.snapshot))
    await until(lambda: fake_cluster["r1"].count("DELETE /snapshots/.*") == 2)
    assert fake_cluster["r1"].pins == {}


async def _entered(opened: Callable[[], Awaitable[object]]) -> None:
    await opened()


async def test_a_result_that_comes_with_the_cancellation_is_undone(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase
) -> None:
    """The thread has delivered it, and the task is cancelled before it runs again."""
    undone: list[int] = []
    call = aio_db._threads.start(lambda: 7, undo=undone.append)
    task = asyncio.ensure_future(aio_db._threads.result(call))
    await asyncio.sleep(0)
    call.job.result()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: undone == [7])


async def test_a_cancelled_block_rolls_back(fake_cluster: FakeCluster, aio_db: AsyncDatabase) -> None:
    """The rollback is sent before the cancellation goes on to the task."""
    inside = asyncio.Event()

    async def work() -> None:
        async with aio_db.begin() as tx:
            await tx.insert("t", ROWS)
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert states(fake_cluster) == ["rolled_back"]
    assert (await aio_db.read("t")).num_rows == 0


async def test_a_second_cancellation_does_not_prevent_the_rollback(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase
) -> None:
    """The rollback waits for a thread when its task is cancelled again; it is sent nevertheless."""
    tx = await aio_db.begin()
    go_on = await busy(aio_db)

    async def work() -> None:
        async with tx:
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert states(fake_cluster) == ["open"]
    go_on()
    await until(lambda: states(fake_cluster) == ["rolled_back"])


@pytest.mark.parametrize(
    "statement",
    [lambda tx: tx.insert("t", ROWS), lambda tx: tx.sql("insert into t select 1")],
    ids=["insert", "sql"],
)
async def test_a_cancelled_statement_leaves_rollback_only(
    fake_cluster: FakeCluster,
    aio_db: AsyncDatabase,
    statement: Callable[[AsyncTransaction], Awaitable[object]],
) -> None:
    """Its rows may be staged or not, so a program that goes on cannot commit half of its work."""
    tx = await aio_db.begin()
    await tx.insert("t", ROWS)
    go_on = await busy(aio_db)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(statement(tx), 0.01)
    go_on()
    assert tx.state is TransactionState.FAILED
    with pytest.raises(TransactionClosedError, match="was cancelled before its answer, and may be half done"):
        await tx.commit()
    await tx.rollback()
    assert (await aio_db.read("t")).num_rows == 0


async def test_a_statement_that_is_cancelled_on_its_way_is_not_committed(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase
) -> None:
    """Its rows arrive after the task has left; a block that swallows the cancellation still raises."""
    tx = await aio_db.begin()

    async def work() -> None:
        async with tx:
            path = f"POST /transactions/{tx.tid}/rows/t"
            await cancelled_in(fake_cluster, path, tx.insert("t", ROWS))

    with pytest.raises(TransactionClosedError, match="half done"):
        await work()
    assert states(fake_cluster) == ["rolled_back"]
    assert (await aio_db.read("t")).num_rows == 0


async def test_a_cancelled_read_leaves_the_transaction_open(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase
) -> None:
    """A read changes nothing, so a program may go on after its own time for it is over."""
    async with aio_db.begin() as tx:
        await tx.insert("t", ROWS)
        await cancelled_in(fake_cluster, "POST /query", tx.read("t"))
        assert tx.state is TransactionState.OPEN
        assert await tx.scan("t").count() == 3
    assert (await aio_db.read("t")).num_rows == 3


@pytest.mark.parametrize("block", [False, True], ids=["commit", "async with"])
async def test_a_cancelled_commit_goes_on_and_tells_its_outcome(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase, block: bool
) -> None:
    """The tid is known, so any client learns what became of it, and so does a repeated commit."""
    tx = await aio_db.begin()
    await tx.insert("t", ROWS)

    async def leave() -> None:
        async with tx:
            pass

    request = f"POST /transactions/{tx.tid}/commit"
    await cancelled_in(fake_cluster, request, leave() if block else tx.commit())
    result = await tx.commit()
    outcome = await aio_db.outcome(tx.tid)
    assert (outcome.decision, outcome.csn) == (Decision.COMMITTED, result.csn)
    assert (tx.state, tx.csn) == (TransactionState.COMMITTED, fake_cluster.csn)
    assert (await aio_db.read("t")).num_rows == 3


async def test_a_cancelled_read_of_a_stream_loses_no_item(aio_db: AsyncDatabase) -> None:
    """A program may wait for the next item for a while, and then again, also while no thread is free."""
    free = await busy(aio_db)
    go_on = threading.Event()

    def items() -> Iterator[int]:
        for number in range(3):
            go_on.wait(60)
            yield number

    stream = AsyncStream(aio_db._threads, items)
    for let_go in (free, lambda: None, go_on.set):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.01)
        let_go()
    assert [item async for item in stream] == [0, 1, 2]


async def test_a_stream_is_closed_behind_a_read_that_was_cancelled(aio_db: AsyncDatabase) -> None:
    """The thread that reads has the iterator to itself; it is closed when that read has ended."""
    go_on, ended = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        try:
            go_on.wait(60)
            yield 1
        finally:
            ended.set()

    stream = AsyncStream(aio_db._threads, items)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.01)
    closing = asyncio.ensure_future(stream.aclose())
    await asyncio.sleep(0)
    assert not ended.is_set()
    go_on.set()
    await closing
    assert ended.is_set()
    assert [item async for item in stream] == [1]  # it was on its way


async def test_a_cancelled_connect_leaves_no_thread(fake_cluster: FakeCluster) -> None:
    """The client that comes too late is closed."""
    await cancelled_in(fake_cluster, "GET /status", _entered(lambda: connect(fake_cluster["r1"].url)))
    await until(lambda: not [one for one in threading.enumerate() if one.name.startswith(NAME)])


async def test_nothing_is_half_done_after_cancellations_at_any_moment(
    fake_cluster: FakeCluster, fresh_seed: int
) -> None:
    """Transactions that are cancelled at drawn moments are whole or absent, and their outcomes say which."""
    drawn = random.Random(fresh_seed)
    before = asyncio.all_tasks()
    begun: dict[int, AsyncTransaction] = {}
    ended: set[int] = set()
    async with connect(fake_cluster["r1"].url, threads_max=3) as db:

        async def work(key: int) -> None:
            async with db.begin() as tx:
                begun[key] = tx
                await tx.insert("t", pa.table({"k": [key]}))
                await tx.read("t")
                await tx.insert("t", pa.table({"k": [key]}))
            ended.add(key)

        for batch in range(10):
            tasks = [asyncio.ensure_future(work(6 * batch + number)) for number in range(6)]
            for task in tasks:
                await asyncio.sleep(drawn.choice([0.0, drawn.uniform(0.0, 0.03)]))
                if drawn.random() < 0.8:
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        outcomes = {key: await db.outcome(tx.tid) for key, tx in begun.items()}
    keys = fake_cluster.table("t", fake_cluster.csn)["k"].to_pylist()
    for key, outcome in outcomes.items():
        assert keys.count(key) == (2 if outcome.decision is Decision.COMMITTED else 0)
        assert key not in ended or outcome.decision is Decision.COMMITTED
    assert set(keys) <= begun.keys()
    assert set(states(fake_cluster)) <= {"committed", "rolled_back"}
    assert fake_cluster["r1"].pins == {}
    assert asyncio.all_tasks() == before
    assert not [one for one in threading.enumerate() if one.name.startswith(NAME)]


async def test_an_error_of_an_abandoned_call_is_not_raised_anywhere(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase
) -> None:
    """The loop reports no exception that was never retrieved; the transaction itself has ended."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    tx = await aio_db.begin()
    fake_cluster["r1"].plan(f"POST /transactions/{tx.tid}/rows/t", TidelockError("a fault"))
    await cancelled_in(fake_cluster, f"POST /transactions/{tx.tid}/rows/t", tx.insert("t", ROWS))
    await tx.rollback()
    await aio_db.close()
    gc.collect()
    assert reported == []
