"""The client with await: what it does without a cancelled task; see test_aio_cancellation for the others."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import multiprocessing
import pickle
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.support.aio import until
from tests.support.replicas.fake_agent import FakeCluster, token_of
from tidelock import client
from tidelock.aio import AsyncDatabase, AsyncStream, AsyncTransaction, connect, join
from tidelock.aio.threads import NAME, Threads
from tidelock.client.agents import begin_order
from tidelock.errors import (
    BadRequestError,
    RefusedError,
    TokenForgedError,
    TransactionClosedError,
    UnavailableError,
    UnknownTableError,
)

ROWS = pa.table({"k": [1, 2, 3]})
TWO = pa.Table.from_batches([pa.record_batch({"k": [1, 2]}), pa.record_batch({"k": [3]})])
BEGIN, COMMIT, QUERY = "POST /transactions", "POST /transactions/.*/commit", "POST /query"
THREADS_MAX = 4


@pytest.fixture
async def aio_db(fake_cluster: FakeCluster) -> AsyncIterator[AsyncDatabase]:
    """A client that was connected to `r1`."""
    async with connect(fake_cluster["r1"].url, timeout_s=5.0, threads_max=THREADS_MAX) as db:
        yield db


def count(cluster: FakeCluster, pattern: str) -> int:
    """Return how many requests of a pattern all agents have received."""
    return sum(agent.count(pattern) for agent in cluster.agents.values())


def threads() -> list[threading.Thread]:
    """Return the threads of all clients with await."""
    return [one for one in threading.enumerate() if one.name.startswith(NAME)]


async def test_transactions_snapshots_and_streams_with_await(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase
) -> None:
    """A transaction commits at the end of its block, and a snapshot streams its rows."""
    async with aio_db.begin() as tx:
        assert (await tx.insert("t", TWO)).rows == 3
        assert (await tx.read("t")).num_rows == 3
        assert await tx.scan("t").count() == 3
    assert (tx.state, tx.csn) == ("committed", fake_cluster.csn)
    assert aio_db.seen_csn == tx.csn
    async with aio_db.snapshot() as snap:
        assert [batch.num_rows async for batch in snap.scan("t").to_batches()] == [2, 1]
        assert (await snap.scan("t", where="k > 1").to_batches().read_all()).num_rows == 2
        assert [table["name"] for table in await snap.tables()] == ["default.t"]
    assert snap.closed
    assert (await aio_db.outcome(tx.tid)).csn == tx.csn
    assert (await aio_db.membership.drain("r2"))["draining"] == ["r2"]


async def test_objects_are_opened_by_await_or_by_their_block(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase
) -> None:
    """`await` gives the object itself, which can be entered later; a block that raises rolls back."""
    tx = await aio_db.begin("a label")
    await tx.insert("t", ROWS)
    snap = await aio_db.snapshot()
    assert (await tx.commit()).rows_inserted == 3
    assert (await snap.read("t")).num_rows == 0
    await snap.close()
    assert (await aio_db.label("a label")) is not None
    tx = await aio_db.begin()
    with pytest.raises(UnknownTableError):
        await _inserted(tx, "t", "missing")
    assert tx.state == "rolled_back"
    assert (await aio_db.read("t")).num_rows == 3
    resumed = await aio_db.resume(fake_cluster["r1"].begin())
    await resumed.rollback()
    await resumed.rollback()


async def _inserted(tx: AsyncTransaction, *tables: str) -> None:
    async with tx:
        for table in tables:
            await tx.insert(table, ROWS)


# -- the order of begins -------------------------------------------------------------------------------------


async def test_no_commit_after_a_begin_is_in_its_snapshot(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase
) -> None:
    """Tasks of the program and other clients that write after `begin` are not ordered by threads."""
    tx = await aio_db.begin()
    assert count(fake_cluster, BEGIN) == 1
    await asyncio.gather(*(aio_db.insert("t", ROWS) for _ in range(3 * THREADS_MAX)))
    await asyncio.wait_for(aio_db.write({"t": ROWS}), 60)
    with client.connect(fake_cluster["r2"].url) as other:
        other.insert("t", ROWS)
    assert tx.snapshot_csn < fake_cluster.csn
    assert (await tx.read("t")).num_rows == 0
    await tx.commit()
    assert count(fake_cluster, BEGIN) == 1


async def test_no_begin_waits_in_a_thread_for_the_call_of_another_task(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase
) -> None:
    """A begin that fails is over: no later call of another task begins it, in whichever thread it runs."""
    refusals = [UnavailableError("it starts") for _ in range(3 * THREADS_MAX)]
    for agent in fake_cluster.agents.values():
        agent.plan(BEGIN, *refusals[: len(refusals) // 3])
    for _ in range(THREADS_MAX):
        with pytest.raises(UnavailableError):
            await aio_db.begin()
    kept = [await aio_db.begin() for _ in range(2 * THREADS_MAX)]
    begun = count(fake_cluster, BEGIN)
    together = threading.Barrier(THREADS_MAX, timeout=60)

    def waiting() -> int:
        together.wait()  # each thread answers once
        return len(begin_order._line.waiting)

    calls = (aio_db._threads.run(waiting) for _ in range(THREADS_MAX))
    assert await asyncio.gather(*calls) == [0] * THREADS_MAX
    await asyncio.gather(*(aio_db.status() for _ in range(3 * THREADS_MAX)))
    assert count(fake_cluster, BEGIN) == begun
    await asyncio.gather(*(tx.rollback() for tx in kept))


# -- threads -------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_thousand_reads_share_a_few_threads(fake_cluster: FakeCluster, aio_db: AsyncDatabase) -> None:
    """Reads that do not fit wait for their turn, and each gets its own answer."""
    for number in range(10):
        fake_cluster.add_table(f"t{number}", pa.table({"k": pa.array(range(number), pa.int64())}))
    most = 0
    async with aio_db.snapshot() as snap:

        async def read(number: int) -> int:
            nonlocal most
            found = await snap.table(f"t{number % 10}")
            most = max(most, len(threads()))
            return int(found["rows"])

        assert await asyncio.gather(*map(read, range(1000))) == 100 * list(range(10))
    assert most == THREADS_MAX


async def test_errors_pass_through_unchanged(fake_cluster: FakeCluster, aio_db: AsyncDatabase) -> None:
    """Class, message and details are those of the synchronous client, also for errors of other kinds."""
    with client.connect(fake_cluster["r1"].url) as sync, pytest.raises(UnknownTableError) as expected:
        sync.insert("missing", ROWS)
    with pytest.raises(UnknownTableError) as found:
        await aio_db.insert("missing", ROWS)
    assert (found.value.message, found.value.details) == (expected.value.message, expected.value.details)
    error = TimeoutError("a timeout of the program's own")

    def fail() -> None:
        raise error

    with pytest.raises(TimeoutError) as raised:
        await aio_db._threads.run(fail)
    assert raised.value is error
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        await aio_db.read("t", limit=3)  # type: ignore[call-arg]
    tx = await aio_db.begin()
    with pytest.raises(UnknownTableError):
        await tx.insert("missing", ROWS)
    with pytest.raises(TransactionClosedError, match="roll it back"):
        await tx.commit()
    await tx.rollback()


async def test_context_variables_reach_the_thread(aio_db: AsyncDatabase) -> None:
    """A call sees the context variables of the task that makes it, and those of no other task."""
    variable = contextvars.ContextVar[int]("variable")

    async def insert(value: int) -> None:
        variable.set(value)

        def batches() -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"k": [variable.get()]})

        await aio_db.insert("t", pa.RecordBatchReader.from_batches(ROWS.schema, batches()))

    await asyncio.gather(*map(insert, range(20)))
    assert sorted((await aio_db.read("t"))["k"].to_pylist()) == list(range(20))


def test_several_loops_use_one_client(fake_cluster: FakeCluster) -> None:
    """Loops one after the other, and loops of several threads at once, share a client."""
    db = asyncio.run(_connected(fake_cluster))

    def write(key: int) -> int:
        return asyncio.run(_written(db, key))

    assert write(0) == 1
    with ThreadPoolExecutor(4) as loops:
        assert max(loops.map(write, range(1, 9))) == 9
    asyncio.run(db.close())
    assert threads() == []


async def _connected(cluster: FakeCluster) -> AsyncDatabase:
    return await connect(cluster["r1"].url, threads_max=2)


async def _written(db: AsyncDatabase, key: int) -> int:
    async with db.begin() as tx:
        await tx.insert("t", pa.table({"k": [key]}))
    return await db.scan("t").count()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
async def test_a_forked_process_has_threads_of_its_own(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase
) -> None:
    """A child can use a client whose threads all run in its parent, in an event loop of its own."""
    await asyncio.gather(*(aio_db.insert("t", ROWS) for _ in range(THREADS_MAX)))

    def work() -> None:
        assert asyncio.run(_written(aio_db, 7)) == 3 * THREADS_MAX + 1

    child = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    child.start()
    await until(lambda: not child.is_alive(), what="the end of the child")
    assert child.exitcode == 0
    assert await aio_db.scan("t").count() == 3 * THREADS_MAX + 1


async def test_a_pickled_client_is_another_one(aio_db: AsyncDatabase) -> None:
    """A copy has threads of its own, and continues from the same CSN."""
    await aio_db.insert("t", ROWS)
    async with pickle.loads(pickle.dumps(aio_db)) as copy:  # noqa: S301 - our own
        assert copy.seen_csn == aio_db.seen_csn
        assert (await copy.read("t")).num_rows == 3
    assert (await aio_db.read("t")).num_rows == 3


@pytest.mark.parametrize("limit", [{"threads_max": 0}, {"close_timeout_s": -1.0}], ids=str)
def test_limits_out_of_range_are_refused(limit: dict[str, Any]) -> None:
    """The error names both limits, and comes before anything is sent."""
    with pytest.raises(BadRequestError, match=r"expected threads_max .* found threads_max="):
        connect("http://127.0.0.1:1", **limit)


async def test_a_client_that_cannot_connect_leaves_no_thread() -> None:
    """The error is that of the synchronous client."""
    with pytest.raises(BadRequestError):
        await connect("ftp://nowhere")
    assert threads() == []


async def test_a_transaction_is_joined_by_its_token(fake_cluster: FakeCluster, aio_db: AsyncDatabase) -> None:
    """With a client, and without one: then the transaction has threads of its own, and ends them."""
    agent = fake_cluster["r1"]
    token = token_of(agent.begin())
    async with join(agent.url, token, threads_max=1) as part:
        assert (await part.insert("t", ROWS)).rows == 3
        assert await part.heartbeat() == 60.0
    assert (await aio_db.join(token).commit()).tid == part.tid
    with pytest.raises(RefusedError, match="closed the client"):
        await part.heartbeat()
    with pytest.raises(TokenForgedError):
        join(agent.url, "no token")


# -- streams -------------------------------------------------------------------------------------------------


async def test_a_stream_reads_one_item_when_it_is_asked_for(aio_db: AsyncDatabase) -> None:
    """Nothing is read ahead, so a slow task does not collect rows in memory."""
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(3):
            read.append(number)
            yield number

    stream = AsyncStream(aio_db._threads, items)
    assert read == []
    assert await anext(stream) == 0
    await aio_db.status()
    assert read == [0]
    assert [item async for item in stream] == [1, 2]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_stream_sends_its_question_with_the_first_item(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase
) -> None:
    """So an error in the question comes there, and each time again: it is never taken for the end."""
    stream = aio_db.scan("missing").to_batches()
    assert count(fake_cluster, QUERY) == 0
    for _ in range(2):
        with pytest.raises(UnknownTableError):
            await anext(stream)
    assert count(fake_cluster, QUERY) == 1


async def test_two_tasks_cannot_read_one_stream_at_once(aio_db: AsyncDatabase) -> None:
    """Each would get an item of the other; the second one is told to open a stream of its own."""
    go_on = threading.Event()

    def items() -> Iterator[bool]:
        yield go_on.wait(60)

    stream = AsyncStream(aio_db._threads, items)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    with pytest.raises(RefusedError, match="open one for each task"):
        await anext(stream)
    go_on.set()
    assert await first


async def test_a_stream_that_is_left_releases_its_pin(
    fake_cluster: FakeCluster, aio_db: AsyncDatabase
) -> None:
    """The end of a block, and the collection of a stream that nobody has closed, both release it."""
    await aio_db.insert("t", TWO)
    pins = fake_cluster["r1"].pins
    async with aio_db.scan("t").to_batches() as stream:
        assert (await anext(stream)).num_rows == 2
        assert len(pins) == 1
    assert pins == {}
    await stream.aclose()
    stream = aio_db.scan("t").to_batches()
    await anext(stream)
    assert len(pins) == 1
    del stream
    gc.collect()
    await until(lambda: pins == {})


async def test_a_generator_that_is_left_ends_in_a_thread(aio_db: AsyncDatabase) -> None:
    """The end of a generator may send requests, which would stop the loop if it was collected there."""
    ended: list[str] = []

    def items() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            ended.append(threading.current_thread().name)

    stream = AsyncStream(aio_db._threads, items)
    assert await anext(stream) == 1
    del stream
    gc.collect()
    await until(lambda: ended)
    assert ended[0].startswith(NAME)


# -- the end -------------------------------------------------------------------------------------------------


async def test_close_waits_for_calls_and_leaves_no_thread(fake_cluster: FakeCluster) -> None:
    """Calls that were made before are answered, later ones are refused, and threads and tasks have ended."""
    before = asyncio.all_tasks()
    db = await connect(fake_cluster["r1"].url, threads_max=2)
    snap = await db.snapshot()
    stream = snap.scan("t").to_batches()
    await stream.schema()
    writes = [asyncio.ensure_future(db.insert("t", ROWS)) for _ in range(20)]
    await asyncio.sleep(0)
    await db.close()
    assert threads() == []
    assert {(await one).rows_inserted for one in writes} == {3}
    assert asyncio.all_tasks() == before
    late: list[Awaitable[object]] = [
        db.status(), db.begin(), db.scan("t").count(), anext(db.scan("t").to_batches()),
    ]  # fmt: skip
    for call in late:
        with pytest.raises(RefusedError, match="connect again"):
            await call
    for harmless in (stream.aclose(), snap.close(), db.changes("t", 1).close(), db.close()):
        await harmless


async def test_close_gives_up_after_its_limit(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that runs goes on to its end and is answered; one that waits for a thread is refused."""
    db = await connect(fake_cluster["r1"].url, threads_max=1, close_timeout_s=0.1)
    fake_cluster["r1"].delays["GET /labels/x"] = 60.0
    running = asyncio.ensure_future(db.label("x"))
    waiting = asyncio.ensure_future(db.label("y"))
    await until(lambda: count(fake_cluster, "GET /labels/x"))
    await db.close()
    assert "1 calls still run 0.1 s after close()" in caplog.text
    with pytest.raises(RefusedError, match="not made"):
        await waiting
    fake_cluster.released.set()
    assert await running is None
    await until(lambda: threads() == [])
    assert count(fake_cluster, "GET /labels/y") == 0


async def test_a_client_that_nobody_has_closed_leaves_no_thread(fake_cluster: FakeCluster) -> None:
    """Its threads end when it is collected."""
    db = await connect(fake_cluster["r1"].url)
    await db.insert("t", ROWS)
    del db
    gc.collect()
    await until(lambda: threads() == [])


async def test_a_closed_client_refuses_what_comes_late() -> None:
    """A collected stream may hand its end over when all threads have ended; that raises no error."""
    ended = Threads(1, 0.0)
    await ended.close()
    ended.hand_over(lambda: None)
    with pytest.raises(RefusedError):
        ended.start(lambda: None)
