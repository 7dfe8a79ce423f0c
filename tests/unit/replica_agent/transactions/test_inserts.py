"""Rows that are staged beside other statements: confirmed ones are kept, those of cut statements not."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.aio import until
from tests.support.rows import settings, stream
from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, Tid
from tidelock.csnlog.core.model import AddPart
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.log import Proposal
from tidelock.errors import CorruptError, DiskFullError, TooLargeError, TransactionClosedError
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.services.failures import QueryFailures
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.damaged_parts import DamagedParts
from tidelock.replica_agent.storage.pack_writer import PartNumbers, StagedBytes, Stager
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.storage.unused_files import remove_late
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.ending.closing import TransactionCloser
from tidelock.replica_agent.transactions.ending.commit import AppliedCommits, Commits, WaitFor
from tidelock.replica_agent.transactions.ending.commit_batching import GroupCommitGate
from tidelock.replica_agent.transactions.ending.proposals import ProposalBuilder
from tidelock.replica_agent.transactions.ending.settlement import Settlement
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.insert import Inserts
from tidelock.replica_agent.transactions.statements.row_checks import RowChecks
from tidelock.replica_agent.transactions.statements.row_staging import RowStaging
from tidelock.replica_agent.transactions.transaction import Transaction, TxState
from tidelock.replication.core.lag import LagVerdict
from tidelock.replication.core.model import CountedCopies, Location, PartMeta
from tidelock.replication.partfs import PartFs, PartSink

HOME = ReplicaId("r1")
SCHEMA = pa.schema([("k", pa.int64())])
#: Rows of a batch that becomes a separate large part.
LARGE = 20_000


def rows(count: int) -> pa.RecordBatch:
    """Return rows that differ, so that they hardly compress."""
    return pa.RecordBatch.from_pydict({"k": list(range(count))}, schema=SCHEMA)


class Body:
    """The body of a request, as far as an insert reads it; it ends when the test says so."""

    def __init__(self, *pieces: bytes, ended: bool = True) -> None:
        self._pieces = iter(pieces)
        self._end = asyncio.Event()
        if ended:
            self._end.set()

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Yield the pieces that are left, then wait for the end."""
        for piece in self._pieces:
            yield piece
        await self._end.wait()


class GatedStager(Stager):
    """A stager whose disk is slow: nothing is stored while the gate is closed."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0

    async def store(self, parts: Sequence[StagedBytes], prepared: Sequence[Tid]) -> None:
        """Store the parts after waiting for the gate."""
        self.asked += 1
        await self.gate.wait()
        await super().store(parts, prepared)


class Home:
    """A replica with one table, for inserts and commits: every commit succeeds at CSN 5."""

    def __init__(self, folder: Path, catalog: Catalog) -> None:
        limits = settings(
            inline_part_bytes_max=16 << 10, part_bytes_max=20_000, row_group_rows=LARGE, large_inserts_max=1
        )
        files = PartFs(folder)
        files.open()
        numbers = PartNumbers(HOME, 1)
        self.catalog = catalog
        self.stager = GatedStager(catalog=catalog, files=files, numbers=numbers, batch_bytes_max=1 << 20)
        self.transactions = Transactions(HOME, 1, limits, time.monotonic)
        self.settings, self.files, self.numbers = limits, files, numbers
        self.tables = Tables(catalog.reader)
        self.waiters, self.metrics = CsnWaiters(Csn(5)), Metrics()
        self.pressure = cast("Any", _NoPressure())
        self.damage = DamagedParts(replica=HOME, reader=catalog.reader, report=lambda *_: None)
        self.staging = RowStaging(
            settings=limits, catalog=catalog, files=files, stager=self.stager, numbers=numbers,
            transactions=self.transactions, tables=self.tables, hint=lambda *_: None,
        )  # fmt: skip
        self.inserts = Inserts(
            settings=limits, waiters=self.waiters, metrics=self.metrics, transactions=self.transactions,
            tables=self.tables, pressure=self.pressure, staging=self.staging,
            mutations=cast("Any", None), derived=cast("Any", None),
            checks=RowChecks(staging=self.staging, catalog=catalog, sql=cast("Any", None)),
        )  # fmt: skip
        self.proposed: list[Proposal] = []
        unused = cast("Any", None)
        copies, removals = cast("Any", self), cast("Any", _NoRemovals())
        proposals = ProposalBuilder(
            replica=HOME, settings=limits, transactions=self.transactions, numbers=numbers, copies=copies,
            removals=removals,
        )  # fmt: skip
        settlement = Settlement(
            settings=limits, log=cast("Any", self), proposals=proposals, labels=unused, validation=unused,
            order=unused, clock=time.monotonic,
        )  # fmt: skip
        closer = TransactionCloser(
            settings=limits, transactions=self.transactions, catalog=catalog, files=files, copies=copies,
            removals=removals,
        )  # fmt: skip
        self.commits = Commits(
            replica=HOME, settings=limits, transactions=self.transactions, metrics=Metrics(),
            applied=AppliedCommits(
                reader=catalog.reader, waiters=self.waiters, applied_on=unused, clock=time.monotonic
            ),
            settlement=settlement, closer=closer, delay=_no_delay, clock=time.monotonic,
            staging=self.staging, carriers=unused, gate=GroupCommitGate(limits.commit_gather_s),
        )  # fmt: skip

    async def insert(self, tx: Transaction, body: Body) -> tuple[int, int]:
        """Insert into the table, as the service for transactions does."""
        failures = QueryFailures(transactions=self.transactions, damage=self.damage)
        with failures.noted(str(tx.tid), "the insert into t"):
            return await self.inserts.insert(tx, "t", body.iter_any(), None)

    async def make(
        self, tid: Tid, parts: Sequence[PartMeta], memory: Sequence[StagedBytes], timeout_s: float
    ) -> CountedCopies:
        """Make the copies of a transaction (`CopyMaker`)."""
        del parts, timeout_s
        await self.stager.store(memory, [tid])
        return CountedCopies((HOME,), 0)

    async def commit(self, proposal: Proposal, *, timeout_s: float) -> Committed:
        """Commit (`CsnLog`)."""
        del timeout_s
        self.proposed.append(proposal)
        return Committed(Csn(5), 1)

    def release(self, tid: Tid) -> None:
        """Accept the end of a transaction (`CopyMaker`)."""


class _NoPressure:
    """Partitions with few parts (`BackPressure`)."""

    async def admit(self, *_: object) -> None:
        """Accept the insert without delay."""


class _NoRemovals:
    """Transactions that add only: they hold no lock (`Removals`)."""

    def committed(self, tx: Transaction, csn: Csn) -> None:
        """Accept the end of a transaction."""

    async def release(self, tx: Transaction) -> None:
        """Release its locks."""


async def _no_delay(timeout_s: float) -> LagVerdict:
    del timeout_s
    return LagVerdict()


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    """A replica with the table default.t, applied up to CSN 5."""
    catalog = Catalog(tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    schema = TableSchema.from_request("t", SCHEMA)
    await catalog.write(
        lambda db: db.execute(
            "INSERT INTO tables VALUES (?, 0, 2, ?, ?, ?, 'active', 'default.t')",
            (schema.name, json.dumps(schema.definition()), schema.arrow_bytes(), schema.common_metadata()),
        )
    )
    made = Home(tmp_path, catalog)
    yield made
    made.staging.close()
    await catalog.close()


def parts_in(proposal: Proposal) -> set[PartId]:
    """Return the parts that a commit would add."""
    return {entry.part for entry in proposal.record.entries if isinstance(entry, AddPart)}


async def test_rows_confirmed_while_a_query_writes_out_are_kept(home: Home) -> None:
    """A query of the transaction moves its rows to the disk; those inserted meanwhile stay where they are."""
    tx = home.transactions.begin(Csn(5))
    await home.insert(tx, Body(stream(rows(10))))
    home.stager.gate.clear()
    query = asyncio.create_task(home.staging.write_out(tx))
    await until(lambda: home.stager.asked)
    assert await home.insert(tx, Body(stream(rows(7)))) == (7, 1)
    home.stager.gate.set()
    await query
    assert sum(part.rows for part in tx.staged.parts) == 17
    await home.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=10)
    assert len(parts_in(home.proposed[0])) == 2
    assert home.transactions.memory_bytes == 0


async def test_rows_taken_back_while_a_query_writes_out_stay_out(home: Home) -> None:
    """An insert that is given up leaves nothing, even if its part is being written to the disk."""
    tx = home.transactions.begin(Csn(5))
    await home.insert(tx, Body(stream(rows(10))))
    part = next(iter(tx.staged.parts)).part
    home.stager.gate.clear()
    query = asyncio.create_task(home.staging.write_out(tx))
    await until(lambda: home.stager.asked)
    home.transactions.drop_memory(tx, part)  # as the end of an insert that was cut does
    home.stager.gate.set()
    await query
    assert list(tx.staged.parts) == []
    assert home.catalog.reader.part(part) is None


async def test_an_insert_that_the_seal_cuts_is_not_committed_in_part(home: Home) -> None:
    """A commit waits until a running insert has taken back the parts that it had finished already."""
    tx = home.transactions.begin(Csn(5))
    await home.insert(tx, Body(stream(rows(10))))
    (whole,) = (part.part for part in tx.staged.parts)
    body = stream(rows(LARGE), rows(LARGE), rows(LARGE))
    cut = asyncio.create_task(home.insert(tx, Body(body[: 2 * len(body) // 3], ended=False)))
    await until(lambda: tx.staged.stored, what="the first part of the running insert")
    await home.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=10)
    with pytest.raises(TransactionClosedError):
        await cut
    assert parts_in(home.proposed[0]) == {whole}
    assert {row.part for row in home.catalog.reader.parts_of(str(tx.tid))} == {whole}


async def test_a_full_disk_in_the_middle_of_an_insert(home: Home, tmp_path: Path) -> None:
    """Neither the insert nor its taking back can write: nothing is left when there is room again."""
    tx = home.transactions.begin(Csn(5))
    with faults.armed("agent.catalog.before", "enospc@2"), pytest.raises(DiskFullError):
        await home.insert(tx, Body(stream(rows(LARGE))))
    _, undo = home.catalog.reader.files()
    assert undo
    await remove_late(home.catalog, PartFs(tmp_path))
    assert home.catalog.reader.files() == (set(), [])


@pytest.mark.parametrize(
    ("cause", "seen"),
    [
        (MemoryError("no room"), TooLargeError),
        (pa.ArrowMemoryError("malloc"), TooLargeError),
        (KeyError("k"), KeyError),
    ],
)
async def test_an_insert_that_fails_in_an_unforeseen_way_leaves_only_the_rollback(
    home: Home, monkeypatch: pytest.MonkeyPatch, cause: Exception, seen: type[Exception]
) -> None:
    """The client may overlook the error; what was inserted before it is not committed alone."""
    tx = home.transactions.begin(Csn(5))
    await home.insert(tx, Body(stream(rows(10))))

    async def broken(*_: object, **__: object) -> None:
        raise cause

    monkeypatch.setattr(RowStaging, "stage", broken)
    with pytest.raises(seen):
        await home.insert(tx, Body(stream(rows(10))))
    assert tx.state is TxState.FAILED
    with pytest.raises(TransactionClosedError):
        await home.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=10)
    assert home.proposed == []


async def test_large_inserts_have_a_bound(home: Home) -> None:
    """A large insert without a slot waits, and reads nothing from its client; a small one is not delayed."""
    tx = home.transactions.begin(Csn(5))
    body = stream(rows(LARGE), rows(LARGE))
    first = asyncio.create_task(home.insert(tx, Body(body[: len(body) // 2], ended=False)))
    await until(home.staging._large.locked)
    second = asyncio.create_task(home.insert(tx, Body(body)))
    assert await home.insert(tx, Body(stream(rows(3)))) == (3, 1)
    assert not second.done()
    first.cancel()
    assert (await second)[0] == 2 * LARGE
    await asyncio.gather(first, return_exceptions=True)


async def test_row_groups_of_a_part_become_a_part(home: Home) -> None:
    """They are staged like rows that are inserted, the large ones in files of their own."""
    tx = home.transactions.begin(Csn(5))
    await home.insert(tx, Body(stream(rows(LARGE))))
    [source] = home.catalog.reader.parts_of(str(tx.tid))
    [made] = await home.staging.cut(tx, source.table, [(source, [0])], Csn(5))
    stored = home.catalog.reader.part(made.part)
    assert stored is not None
    assert stored.file is not None
    assert stored.file != source.file
    location = Location(stored.file, stored.offset, stored.length, stored.blocks)
    assert pq.read_table(pa.BufferReader(home.files.read(location))).num_rows == made.rows == LARGE
    assert {part.part for part in tx.staged.parts} == {source.part, made.part}


async def test_a_cut_that_is_given_up_leaves_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is in the middle of a write, and ends before what it has written is taken back."""
    tx = home.transactions.begin(Csn(5))
    await home.insert(tx, Body(stream(rows(LARGE))))
    [source] = home.catalog.reader.parts_of(str(tx.tid))
    writes, gate, write = threading.Event(), threading.Event(), PartSink.write

    def slow(sink: PartSink, data: bytes) -> int:
        writes.set()
        gate.wait()
        return write(sink, data)

    monkeypatch.setattr(PartSink, "write", slow)
    cut = asyncio.create_task(home.staging.cut(tx, source.table, [(source, [0])], Csn(5)))
    await until(writes.is_set)
    cut.cancel()
    await asyncio.sleep(0.05)
    assert not cut.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await cut
    assert {part.part for part in tx.staged.parts} == {source.part}
    assert home.catalog.reader.files() == ({source.file}, [])
    assert [path.name for path in home.files.data_dir.glob("tmp/*")] == []


async def test_a_row_group_is_written_beside_the_thread_that_reads(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default (`encode_threads`) an insert has one more thread than its own."""
    names: set[str] = set()
    write = PartSink.write

    def noted(sink: PartSink, data: bytes) -> int:
        names.add(threading.current_thread().name.split("_")[0])
        return write(sink, data)

    monkeypatch.setattr(PartSink, "write", noted)
    assert home.settings.encode_threads == 2
    tx = home.transactions.begin(Csn(5))
    assert (await home.insert(tx, Body(stream(rows(LARGE), rows(LARGE)))))[0] == 2 * LARGE
    assert "row-group" in names


async def test_an_insert_that_is_given_up_while_another_thread_writes_leaves_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are taken back when that thread has ended."""
    writes, gate, write = threading.Event(), threading.Event(), PartSink.write

    def slow(sink: PartSink, data: bytes) -> int:
        if threading.current_thread().name.startswith("row-group"):
            writes.set()
            gate.wait(30)
        return write(sink, data)

    monkeypatch.setattr(PartSink, "write", slow)
    tx = home.transactions.begin(Csn(5))
    inserting = asyncio.create_task(home.insert(tx, Body(stream(rows(LARGE)), ended=False)))
    await until(writes.is_set)
    inserting.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not inserting.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await inserting
    assert list(tx.staged.parts) == []
    assert home.catalog.reader.files() == (set(), [])
    assert [path.name for path in home.files.data_dir.glob("tmp/*")] == []


async def test_a_part_that_is_damaged_is_not_cut(home: Home) -> None:
    """The error names it; nothing of the others is kept either."""
    tx = home.transactions.begin(Csn(5))
    for _ in range(2):
        await home.insert(tx, Body(stream(rows(LARGE))))
    first, second = home.catalog.reader.parts_of(str(tx.tid))
    assert second.file is not None
    path = home.files.data_dir / second.file
    path.write_bytes(bytes(len(path.read_bytes())))
    with pytest.raises(CorruptError, match=second.part):
        await home.staging.cut(tx, first.table, [(first, [0]), (second, [0])], Csn(5))
    assert {part.part for part in tx.staged.parts} == {first.part, second.part}
    assert home.catalog.reader.files() == ({first.file, second.file}, [])
