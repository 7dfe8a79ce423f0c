"""The catalog under load: its queue has a bound, and reads of many rows leave the event loop."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest

from tests.support.aio import until
from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId
from tidelock.errors import UnavailableError, UnknownTableError
from tidelock.replica_agent.config.switches import Switches
from tidelock.replica_agent.services.administration import AdministrationService
from tidelock.replica_agent.storage.catalog import Catalog, Job
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.removals import Removals
from tidelock.replica_agent.transactions.transaction import Isolation
from tidelock.wire.tables import PartInfo

TABLE = TableId("default.t")
JOBS_MAX = 3


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """A catalog with a short queue, and a table of parts in two partitions."""
    made = Catalog(
        tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20, jobs_max=JOBS_MAX, wait_s=60
    )
    schema = TableSchema.from_request("t", pa.schema([("k", pa.int64()), ("p", pa.int64())]), ["p"])

    def fill(db: sqlite3.Connection) -> None:
        db.execute(
            "INSERT INTO tables VALUES (?, 0, 2, ?, ?, ?, 'active', 'default.t')",
            (schema.name, json.dumps(schema.definition()), schema.arrow_bytes(), schema.common_metadata()),
        )
        db.executemany(
            "INSERT INTO parts (part, table_name, path, rows, length, checksum, creation_tid, creation_csn, "
            "kind, state) VALUES (?, 'default.t', ?, 5, 10, '', '1-r1-1-1', 3, 'part', 'held')",
            [(f"r1-1-{number}", f"p={number % 2}") for number in range(10)],
        )

    await made.write(fill)
    yield made
    await made.close()


# -- the queue of writes -------------------------------------------------------------------------------------


class SlowDisk:
    """A job that holds up the writer until it is let go."""

    def __init__(self) -> None:
        self.started, self.go_on = threading.Event(), threading.Event()

    def __call__(self, _: sqlite3.Connection) -> None:
        """Wait."""
        self.started.set()
        assert self.go_on.wait(60)


def answering(number: int) -> Job[int]:
    """Return a job whose result is a number."""
    return lambda _: number


@pytest.fixture
def slow() -> Iterator[SlowDisk]:
    """A disk that is slow until the test, or its end, lets it go."""
    made = SlowDisk()
    yield made
    made.go_on.set()


async def test_a_full_queue_delays_then_refuses(catalog: Catalog, slow: SlowDisk) -> None:
    """Beyond catalog_jobs_max callers wait for a place; beyond as many again they are refused at once."""
    writes: list[asyncio.Task[Any]] = [asyncio.create_task(catalog.write(slow))]
    await until(slow.started.is_set)
    writes += [asyncio.create_task(catalog.write(answering(n))) for n in range(2 * JOBS_MAX - 1)]
    await until(lambda: catalog._queue.qsize() == JOBS_MAX - 1)
    with pytest.raises(UnavailableError, match=rf"{JOBS_MAX} writes wait .*catalog_jobs_max.*as many"):
        await catalog.write(lambda _: None)
    assert catalog._queue.qsize() == JOBS_MAX - 1
    slow.go_on.set()
    assert await asyncio.gather(*writes) == [None, *range(2 * JOBS_MAX - 1)]
    assert await catalog.write(lambda _: "room again") == "room again"


async def test_a_caller_that_gives_up_leaves_its_place_when_its_job_has_ended(
    catalog: Catalog, slow: SlowDisk
) -> None:
    """A job that is queued runs although nobody waits for it, so it takes a place until then."""
    first = asyncio.create_task(catalog.write(slow))
    await until(slow.started.is_set)
    given_up = [asyncio.create_task(catalog.write(lambda _: None)) for _ in range(JOBS_MAX - 1)]
    await until(lambda: catalog._queue.qsize() == JOBS_MAX - 1)
    for task in given_up:
        task.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    late = asyncio.create_task(catalog.write(lambda _: "late"))
    await asyncio.sleep(0)
    assert catalog._places.locked()
    late.cancel()
    slow.go_on.set()
    await asyncio.gather(first, late, return_exceptions=True)
    await until(lambda: catalog._callers == 0)
    assert await asyncio.gather(*(catalog.write(answering(n)) for n in range(JOBS_MAX))) == [0, 1, 2]


async def test_a_caller_without_a_place_in_time_is_refused(tmp_path: Path, slow: SlowDisk) -> None:
    """The message names the setting and the time, and nothing of the job is stored."""
    catalog = Catalog(tmp_path, initial={}, cache_bytes=1 << 20, jobs_max=1, wait_s=0.01)
    first = asyncio.create_task(catalog.write(slow))
    await until(slow.started.is_set)
    with pytest.raises(UnavailableError, match=r"catalog_jobs_max\), and no place was free for 0.01 s"):
        await catalog.write(lambda _: None)
    slow.go_on.set()
    await first
    await catalog.close()


# -- reads of many rows --------------------------------------------------------------------------------------


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let every read of a table's parts wait for the event loop, which opens this gate."""
    opened = threading.Event()
    for name in ("parts", "parts_json", "partition", "partitions"):
        read = getattr(CatalogReader, name, None)
        if read is not None:

            def waits(*args: Any, read: Any = read) -> Any:
                assert opened.wait(5), "the read runs in the event loop: nothing else could"
                return read(*args)

            monkeypatch.setattr(CatalogReader, name, waits)
    return opened


class NoLocks:
    """Locks that are free, and nothing to write out (`Locks`, `RowStaging`)."""

    async def take(self, *_: object, **__: object) -> None:
        """Take locks."""

    async def write_out(self, *_: object) -> None:
        """Write out staged rows: there are none."""


def removals(catalog: Catalog, transactions: Transactions) -> Removals:
    """Return the statements that remove whole partitions."""
    free = cast("Any", NoLocks())
    return Removals(
        settings=settings(), switches=Switches.of(settings()), catalog=catalog, files=cast("Any", None),
        transactions=transactions,
        tables=Tables(catalog.reader), staging=free, checks=free, locks=free, waiters=CsnWaiters(Csn(5)),
    )  # fmt: skip


@pytest.mark.parametrize("isolation", [Isolation.SNAPSHOT, Isolation.SERIALIZABLE])
@pytest.mark.parametrize("whole_table", [True, False])
async def test_a_heartbeat_is_answered_while_a_removal_reads_its_parts(
    catalog: Catalog, gate: threading.Event, isolation: Isolation, *, whole_table: bool
) -> None:
    """A table of 100,000 parts took 1.0 s in the event loop; heartbeats, pushes and acks waited for it."""
    transactions = Transactions(ReplicaId("r1"), 2, settings(), lambda: 7.0)
    tx, other = transactions.begin(Csn(5), isolation=isolation), transactions.begin(Csn(5), lease_s=1)
    statements = removals(catalog, transactions)
    work = statements.truncate(tx, "t") if whole_table else statements.drop_partition(tx, "t", {"p": 1})
    removal = asyncio.create_task(work)
    await until(lambda: tx.statements.statement_csn == Csn(5))
    other.lease.until = 0.0
    transactions.find(str(other.tid), sign_of_life=True)
    assert other.lease.until == 8.0
    gate.set()
    assert (await removal).parts == (10 if whole_table else 5)
    assert len(tx.staged.removed) == (10 if whole_table else 5)
    if isolation is Isolation.SERIALIZABLE:
        assert tx.statements.reads == {TABLE: None if whole_table else frozenset({"p=0"})}


async def test_a_listing_of_parts_leaves_the_event_loop(catalog: Catalog, gate: threading.Event) -> None:
    """GET /parts of a large table delays nobody."""
    service = AdministrationService.__new__(AdministrationService)
    service.catalog = catalog
    service.tables = Tables(catalog.reader)
    listing = asyncio.create_task(service.parts(Csn(5), TABLE))
    await asyncio.sleep(0)
    gate.set()
    found = msgspec.json.decode(await listing, type=list[PartInfo])
    assert {part.file for part in found} == {
        f"default/t/p={number % 2}/r1-1-{number}.parquet" for number in range(10)
    }
    with pytest.raises(UnknownTableError):
        await service.parts(Csn(5), TableId("default.absent"))
