"""Processes for SQL: limits that end a statement, and processes that start and end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.replicas.datadir import DataDir
from tests.support.replicas.sql import ORDERS, orders_and_items, request, rows, workers
from tests.support.rows import settings
from tests.support.waiting import eventually
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.errors import TidelockError, TooLargeError, UnavailableError
from tidelock.replica_agent.sql.mutation import DeleteRows, MutationRequest
from tidelock.replica_agent.sql.pool import SqlPool

MakePool = Callable[..., SqlPool]


@pytest.fixture
def directory(tmp_path: Path) -> DataDir:
    """A data directory with two tables, up to CSN 6."""
    return orders_and_items(tmp_path / "data")


@pytest.fixture
async def make_pool(directory: DataDir) -> AsyncIterator[MakePool]:
    """A function that makes pools over the data directory; they are closed after the test."""
    async with contextlib.AsyncExitStack() as stack:

        def make(**limits: Any) -> SqlPool:
            made = SqlPool(settings(**limits), directory.path)
            stack.push_async_callback(made.close)
            return made

        yield make


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until the condition is true."""
    await asyncio.to_thread(eventually, condition)


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r",
        "SELECT count(*) FROM range(10000000000) a, range(10000000000) b WHERE a.range * b.range % 7 = 3",
    ],
    ids=["recursion", "cross product"],
)
@pytest.mark.few(1)
async def test_a_statement_that_never_ends(make_pool: MakePool, sql: str) -> None:
    """A statement is ended at its time limit, which the error names; the next one gets a new process."""
    pool = make_pool(sql_timeout_s=2.0)
    await rows(pool, "SELECT 1")
    [before] = workers()
    with pytest.raises(TooLargeError, match=r"longer than 2 s \(sql_timeout_s\)"):
        await rows(pool, sql)
    assert await rows(pool, "SELECT count(*) FROM orders") == [(2,)]
    assert before.pid not in {worker.pid for worker in workers()}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT string_agg(i::varchar || 'x') FROM range(1000000000) t(i)",
        "SELECT list(i) FROM range(10000000000) t(i)",
        "SELECT count(*) FROM (SELECT DISTINCT hash(i) FROM range(10000000000) t(i))",
        "SELECT repeat('x', 4000000000)",
        "SELECT i, repeat('x', 100000) AS s FROM range(10000000) t(i) ORDER BY s, -i",
    ],
    ids=["one text", "one list", "many groups", "one value", "sorting"],
)
@pytest.mark.slow
async def test_a_statement_that_takes_all_memory(make_pool: MakePool, directory: DataDir, sql: str) -> None:
    """A statement that exceeds its memory and its temporary files ends alone, and leaves no file."""
    pool = make_pool(sql_memory_bytes=64 << 20, sql_workers=1)
    with pytest.raises(TooLargeError, match="sql_memory_bytes"):
        await rows(pool, sql)
    assert await rows(pool, "SELECT count(*) FROM orders") == [(2,)]
    assert [list(folder.iterdir()) for folder in (directory.path / "run").iterdir()] == [[]]


# -- processes that come and go


ENDLESS = "SELECT count(*) FROM range(1000000000000) t(i) WHERE i % 7 = 3"
LONG = "SELECT i, i::varchar FROM range(1000000000) t(i)"
#: Longer than any stop takes, so that a process that is ended was not stopped.
PATIENT = {"sql_stop_s": 60.0, "sql_workers": 1}


async def test_a_client_that_goes_away(make_pool: MakePool) -> None:
    """Closing the result early has its process give up the statement; it takes the next one."""
    pool = make_pool(**PATIENT)
    for _ in range(3):
        pieces = pool.run(request(LONG))
        await anext(pieces)
        [worker] = workers()
        await pieces.aclose()
        assert await rows(pool, "SELECT count(*) FROM orders") == [(2,)]
        assert workers() == [worker]


@pytest.mark.parametrize("sql", [ENDLESS, f"SELECT max(s) FROM ({LONG} ORDER BY 2) q(i, s)"])
async def test_a_cancelled_statement_leaves_its_process(make_pool: MakePool, sql: str) -> None:
    """Cancelling the task that waits for the first rows gives up the statement, too."""
    pool = make_pool(**PATIENT)
    await rows(pool, "SELECT 1")
    [worker] = workers()
    for pause_s in (0.0, 0.01, 0.3):
        task = asyncio.create_task(rows(pool, sql))
        await until(lambda: pool._busy)
        await asyncio.sleep(pause_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await rows(pool, "SELECT count(*) FROM orders") == [(2,)]
    assert workers() == [worker]


async def test_a_statement_that_is_left_at_its_end(make_pool: MakePool) -> None:
    """A stop that comes when all is sent already ends nothing, and the next statement least of all."""
    pool = make_pool(**PATIENT)
    for number in range(100):
        async with pool.statement(request(f"SELECT {number}")):
            await asyncio.sleep(number % 5 / 1000)
        assert await rows(pool, f"SELECT {number} + 1") == [(number + 1,)]
    assert len(workers()) == 1


async def test_a_refused_change_leaves_its_process(make_pool: MakePool) -> None:
    """A delete whose parts another transaction holds is given up before its rows are read."""
    pool = make_pool(**PATIENT)
    await rows(pool, "SELECT 1")
    [worker] = workers()
    delete = MutationRequest(Csn(6), None, TableId(ORDERS), DeleteRows("id = 3"))
    for _ in range(3):
        async with pool.mutate(delete) as mutation:  # an error of the caller leaves it, too
            assert len(mutation.affected.parts) == 1
    assert await rows(pool, "SELECT count(*) FROM orders") == [(2,)]
    assert workers() == [worker]


async def test_a_process_that_cannot_give_up(make_pool: MakePool) -> None:
    """After sql_stop_s a process is ended, and another one waits for the next statement."""
    pool = make_pool(sql_stop_s=0.2, sql_workers=1)
    pieces = pool.run(request(LONG))
    await anext(pieces)
    [worker] = workers()
    worker.suspend()
    await pieces.aclose()
    assert not worker.is_running()
    await until(lambda: pool._idle)
    [spare] = workers()
    assert await rows(pool, "SELECT count(*) FROM orders") == [(2,)]
    assert workers() == [spare]


async def test_a_statement_that_comes_before_the_spare_waits_for_it(make_pool: MakePool) -> None:
    """The next statement starts no process beside the one that is being started."""
    pool = make_pool(sql_timeout_s=1.0, sql_workers=1)
    with pytest.raises(TooLargeError, match="sql_timeout_s"):
        await rows(pool, ENDLESS)
    assert pool._idle == []
    assert await rows(pool, "SELECT count(*) FROM orders") == [(2,)]
    assert len(workers()) == 1
    assert pool._started == 2


async def test_a_process_that_is_killed(make_pool: MakePool) -> None:
    """A process that is killed while idle is replaced silently; a busy one fails only its statement."""
    pool = make_pool(sql_workers=1)
    await rows(pool, "SELECT 1")
    [worker] = workers()
    worker.kill()
    worker.wait()
    await until(lambda: not pool._idle[0].reusable)
    assert await rows(pool, "SELECT 2") == [(2,)]
    async with aclosing(pool.run(request("SELECT i FROM range(1000000000) t(i)"))) as pieces:
        await anext(pieces)
        [worker] = workers()
        worker.send_signal(signal.SIGTERM)
        with pytest.raises(TidelockError):
            async for _ in pieces:
                pass
    assert await rows(pool, "SELECT 3") == [(3,)]


@pytest.mark.slow
async def test_a_caller_that_stalls(make_pool: MakePool) -> None:
    """A caller that takes no rows does not hold a process forever."""
    pool = make_pool(sql_workers=1, sql_timeout_s=3.0)
    await rows(pool, "SELECT 1")
    async with aclosing(pool.run(request("SELECT i FROM range(1000000000) t(i)"))) as pieces:
        await anext(pieces)
        [worker] = workers()
        await asyncio.to_thread(worker.wait)
        with pytest.raises(UnavailableError, match="no client read the rows"):
            async for _ in pieces:
                pass


async def test_the_queue_is_bounded(make_pool: MakePool) -> None:
    """Statements beyond the queue are refused at once; those within it get their turn."""
    pool = make_pool(sql_workers=1, sql_waiting_max=1)
    async with aclosing(pool.run(request("SELECT i FROM range(1000000000) t(i)"))) as pieces:
        await anext(pieces)
        waiting = asyncio.create_task(rows(pool, "SELECT 1"))
        await until(lambda: pool._waiting)
        with pytest.raises(UnavailableError, match="1 statements wait"):
            await rows(pool, "SELECT 2")
    assert await waiting == [(1,)]


async def test_a_closed_pool_leaves_no_process_or_folder(make_pool: MakePool, directory: DataDir) -> None:
    """Closing ends all processes, idle and busy, removes their folders, and refuses later statements."""
    pool = make_pool(sql_workers=2)
    await rows(pool, "SELECT 1")
    async with aclosing(pool.run(request("SELECT i FROM range(1000000000) t(i)"))) as pieces:
        await anext(pieces)
        await pool.close()
        with pytest.raises(UnavailableError):
            async for _ in pieces:
                pass
    with pytest.raises(UnavailableError, match="stops"):
        await rows(pool, "SELECT 1")
    assert workers() == []
    assert list((directory.path / "run").iterdir()) == []


_AGENT = """
import asyncio, sys
from pathlib import Path
from tests.support.rows import settings
from tests.support.replicas.sql import request
from tidelock.replica_agent.sql.pool import SqlPool

async def main():
    pool = SqlPool(settings(), Path(sys.argv[1]))
    pieces = pool.run(request("SELECT i FROM range(1000000000000) t(i)"))
    await anext(pieces)
    print(pool.__dict__["_busy"].pop().process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_processes_end_with_their_agent(directory: DataDir) -> None:
    """A SQL process whose agent was killed ends by itself, idle or busy."""
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _AGENT, str(directory.path)),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))},
    )
    assert agent.stdout is not None
    try:
        worker = psutil.Process(int(await agent.stdout.readline()))
    finally:
        agent.kill()
        await agent.wait()
    await asyncio.to_thread(worker.wait, 20)
