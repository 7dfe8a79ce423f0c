"""Files that another replica receives for a home: the content of both, whatever fails between the two."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.support.aio import until
from tests.support.spark.hdfs_client import JOB, file_name, parquet
from tests.unit.replica_agent.transactions import test_inserts
from tests.unit.replica_agent.transactions.test_inserts import Home
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.errors import (
    BadRequestError,
    TokenFinishedError,
    TooLargeError,
    TransactionClosedError,
    UnavailableError,
)
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.unused_files import remove_files
from tidelock.replica_agent.transactions.staging_paths import StagingPath
from tidelock.replica_agent.transactions.transaction import Transaction, TxState
from tidelock.replica_agent.uploads.eager_replication import EagerReplication
from tidelock.replica_agent.uploads.examiner import FileExaminer
from tidelock.replica_agent.uploads.grants import UploadGrants
from tidelock.replica_agent.uploads.peer_uploads import PeerUploads
from tidelock.replica_agent.uploads.receiving import UploadReceiver
from tidelock.replica_agent.uploads.redirect import UPLOADS, UploadRedirector
from tidelock.replica_agent.uploads.token_issuer import TokenIssuer
from tidelock.replica_agent.uploads.uploads import Uploads
from tidelock.replication.core.model import PartMeta, Peer, Wanted
from tidelock.replication.partfs import BUFFER_BYTES, PartFs
from tidelock.wire.peers import UploadBegun

R1, R2 = ReplicaId("r1"), ReplicaId("r2")
TABLE = TableId("default.t")
KEY = b"k" * 32
ATTEMPT: StagingPath = ("_temporary", "0", "_temporary", "attempt_1_m_000000_0")
FILE: StagingPath = (*ATTEMPT, file_name())
DATA = parquet(pa.table({"k": pa.array(range(1000), pa.int64())}))

#: The fixture of a home.
home = test_inserts.home


class Fetches:
    """The parts that the home wants; no part arrives before `bring` (`Fetcher`)."""

    def __init__(self) -> None:
        self.wanted: dict[PartId, Wanted] = {}

    def want(self, wanted: Wanted) -> None:
        """Record the wanted parts."""
        self.wanted[wanted.meta.part] = wanted

    def drop(self, parts: Iterable[PartId]) -> None:
        """Forget the parts."""
        for part in parts:
            self.wanted.pop(part, None)

    def coming_bytes(self) -> int:
        """Return the bytes that are still missing."""
        return sum(item.meta.length for item in self.wanted.values())

    def came(self, parts: Iterable[PartId]) -> int:
        """Return that no bytes have arrived in part."""
        return 0 * len(list(parts))

    def trouble(self, _: PartId) -> str:
        """Return why no part arrives."""
        return "the test does not let it"


class Hints:
    """The notifications of the peers (`Pusher`)."""

    def __init__(self) -> None:
        self.hinted: list[tuple[ReplicaId | None, list[PartId]]] = []
        self.dropped: list[PartId] = []

    def hint(self, _: Tid, parts: Sequence[PartMeta], holder: ReplicaId | None = None) -> None:
        """Record the hint."""
        self.hinted.append((holder, [meta.part for meta in parts]))

    def drop(self, parts: Sequence[PartId]) -> None:
        """Record the dropped parts."""
        self.dropped += parts


class Wire:
    """The connection from the other replica to the home (`PeerClient`), which loses answers on request."""

    def __init__(self, redirector: UploadRedirector) -> None:
        self.redirector = redirector
        self.lost = 0

    async def begin_upload(self, _: str, grant: str, replica: ReplicaId) -> UploadBegun:
        """Send the request."""
        return await self.redirector.begin(grant, replica)

    async def end_upload(self, _: str, tid: Tid, table: TableId, replica: ReplicaId, meta: PartMeta) -> None:
        """Send the report."""
        await self.redirector.end(tid, table, replica, meta)
        if self.lost:
            self.lost -= 1
            raise UnavailableError("the answer is lost")

    async def fail_upload(self, _: str, tid: Tid, table: TableId, replica: ReplicaId, part: PartId) -> None:
        """Send the report."""
        await self.redirector.fail(tid, table, replica, part)


class Pair:
    """A home and another replica that receives files for it."""

    def __init__(self, home: Home, folder: Path) -> None:
        (folder / "r2").mkdir()
        settings = home.settings
        self.home, self.fetches, self.hints = home, Fetches(), Hints()
        self.eager = EagerReplication(
            home.catalog, home.files, cast("Any", self.hints), cast("Any", self.fetches), patience_s=0.1
        )
        tokens = TokenIssuer(
            settings=settings, key=KEY, cluster="c", replica=R1, transactions=home.transactions,
            member=cast("Any", None), monotonic=time.monotonic, wall_s=time.time,
        )  # fmt: skip
        self.receiver = UploadReceiver(uploads_max=2)
        self.examiner = FileExaminer(settings=settings, data_dir=home.files.data_dir)
        self.writes = Uploads(
            settings=settings, catalog=home.catalog, files=home.files, numbers=home.numbers,
            waiters=home.waiters, metrics=home.metrics, transactions=home.transactions, tables=home.tables,
            inserts=home.inserts, removals=cast("Any", None), tokens=tokens,
            eager=self.eager, receiver=self.receiver, examiner=self.examiner, hint=lambda *_: None,
        )  # fmt: skip
        self.peers: tuple[Peer, ...] = (Peer(R2, "r2:1", "r2:2", "d2"),)
        self.redirector = UploadRedirector(
            settings=settings, home=R1, numbers=home.numbers, files=home.files, uploads=self.writes,
            eager=self.eager, grants=UploadGrants(KEY, shared=False, cluster="c", replica=R1),
            targets=cast("Any", self), monotonic=time.monotonic,
        )  # fmt: skip
        self.limit(upload_spread=True)
        self.wire = Wire(self.redirector)
        self.catalog = Catalog(folder / "r2", initial={"replica": "r2", "disk": "d2"}, cache_bytes=1 << 20)
        self.files = PartFs(folder / "r2")
        self.files.open()
        self.taken = 0
        self.peer_uploads = PeerUploads(
            replica=R2, catalog=self.catalog, files=self.files, client=cast("Any", self.wire),
            grants=UploadGrants(b"another key" * 3, shared=False, cluster="c", replica=R2),
            peers=lambda: [Peer(R1, "r1:1", "r1:2", "d1")], retry_wait_max_s=0.01,
            receiver=self.receiver, taken=self._count,
        )  # fmt: skip

    def _count(self) -> None:
        self.taken += 1

    def limit(self, **limits: object) -> None:
        """Change the home's settings."""
        changed = self.redirector.settings.model_copy(update=limits)
        self.writes.quota.settings = self.redirector.settings = changed

    async def now(self) -> tuple[Peer, ...]:
        """Return the peers that can receive files (`Targets`)."""
        return self.peers

    async def grant(self, tx: Transaction, place: StagingPath = FILE) -> str:
        """Return a grant for r2, chosen in turn."""
        for _ in range(2):
            location = await self.redirector.location(tx, TABLE, place, overwrite=False)
            if location is not None:
                assert location.startswith(f"http://r2:1/webhdfs/v1/transactions/{UPLOADS}/")
                return location.rpartition("/")[2].partition("?")[0]
        raise AssertionError("r2 has no turn")

    async def begin(self) -> Transaction:
        """Return a transaction with a running job."""
        tx = self.home.transactions.begin(Csn(5))
        assert self.writes.of(tx, TABLE).area.make_folder(("_temporary", "0"))
        return tx

    async def close_job(self, tx: Transaction) -> None:
        """Commit the task and the job, up to the mark."""
        task = ("_temporary", "0", "task_1_m_000000")
        assert await self.writes.rename(tx, TABLE, ATTEMPT, task)
        assert await self.writes.rename(tx, TABLE, (*task, file_name()), (file_name(),))
        await self.writes.delete(tx, TABLE, ("_temporary",), recursive=True)

    async def bring(self) -> None:
        """Let the wanted parts of the home arrive there from r2."""
        for part, item in list(self.fetches.wanted.items()):
            row = self.catalog.reader.part(part)
            assert row is not None
            assert row.file is not None
            assert (row.table, row.creation_tid, row.file) == ("", str(item.tid), self.files.part_path(part))
            sink = self.home.files.begin(part)
            sink.write((self.files.data_dir / row.file).read_bytes())
            staged = jobs.StagedPart(item.meta, sink.finish(), item.tid)
            await self.home.catalog.write(lambda db, staged=staged: jobs.add_staged(db, [staged], []))  # type: ignore[misc]
            del self.fetches.wanted[part]
            self.eager.arrived(part)

    async def left(self) -> list[str]:
        """Return the files and rows on r2."""
        files = [path.name for top in ("parts", "tmp") for path in (self.files.data_dir / top).rglob("*.*")]
        named, undo = self.catalog.reader.files()
        return [*files, *named, *undo, *self.catalog.reader.prepared()]

    async def close(self) -> None:
        """Release everything."""
        self.receiver.close()
        await self.examiner.close()
        await self.catalog.close()
        self.files.close()


@pytest.fixture
async def pair(home: Home, tmp_path: Path) -> AsyncIterator[Pair]:
    """Two replicas."""
    made = Pair(home, tmp_path)
    yield made
    await made.close()


async def body(data: bytes = DATA, gate: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    """Yield a file in two pieces; the second waits for the gate."""
    yield data[:100]
    if gate is not None:
        await gate.wait()
    yield data[100:]


async def test_the_seal_waits_for_what_another_has_taken(pair: Pair) -> None:
    """Until the file arrives the home knows its length alone; then it is a part like any other."""
    tx = await pair.begin()
    await pair.peer_uploads.take(await pair.grant(tx), body())
    entry = pair.writes.of(tx, TABLE).area.entry(FILE)
    assert entry is not None
    assert (entry.length, pair.taken, pair.peer_uploads.tids()) == (len(DATA), 1, frozenset())
    assert [item.holders for item in pair.fetches.wanted.values()] == [(R2,)]
    await pair.close_job(tx)
    [(holder, hinted)] = pair.hints.hinted
    assert holder == R2
    sealing = asyncio.create_task(pair.writes.seal(tx, TABLE))
    await asyncio.sleep(0.02)
    assert not sealing.done()
    await pair.bring()
    assert (await sealing).rows == 1000
    [meta] = tx.staged.stored.values()
    assert (meta.part, meta.table, meta.rows, meta.length) == (hinted[0], TABLE, 1000, len(DATA))
    rows = pair.home.catalog.reader.parts(TABLE, Csn(5), own=str(tx.tid))
    assert [row.part for row in rows] == hinted
    assert pair.writes.of(tx, TABLE).length == 0


async def test_the_seal_fails_when_nothing_comes(pair: Pair) -> None:
    """A commit without that file is not possible."""
    tx = await pair.begin()
    await pair.peer_uploads.take(await pair.grant(tx), body())
    await pair.close_job(tx)
    with pytest.raises(UnavailableError, match=r"written to r2 cannot be fetched .*the test does not let it"):
        await pair.writes.seal(tx, TABLE)
    with pytest.raises(TransactionClosedError):
        pair.home.transactions.require_open(tx)
    assert tx.staged.stored == {}


@pytest.mark.parametrize("waiting", [True, False])
async def test_a_mark_whose_answer_nobody_waits_for(pair: Pair, waiting: bool) -> None:
    """Spark takes its job for failed, and may run it again: a commit would then have its rows twice."""
    tx = await pair.begin()
    await pair.writes.upload(tx, TABLE, FILE, body(), overwrite=False)
    await pair.close_job(tx)
    mark = pair.writes.mark(tx, TABLE, ("_SUCCESS",), lambda: waiting)
    if waiting:
        await mark
        pair.home.transactions.require_open(tx)
        return
    with pytest.raises(UnavailableError, match="given up waiting"):
        await mark
    with pytest.raises(TransactionClosedError, match="given up waiting"):
        pair.home.transactions.require_open(tx)


@pytest.mark.parametrize("lost", [1, 2])
async def test_an_answer_that_is_lost_is_asked_for_again(pair: Pair, lost: int) -> None:
    """The home has recorded the file; a repeated report changes nothing."""
    tx = await pair.begin()
    pair.wire.lost = lost
    await pair.peer_uploads.take(await pair.grant(tx), body())
    assert pair.writes.of(tx, TABLE).length == len(DATA)
    await pair.close_job(tx)
    await pair.bring()
    assert (await pair.writes.seal(tx, TABLE)).parts == 1


async def test_answers_that_stay_lost(pair: Pair) -> None:
    """The writer gets an error, so the file is given up on both sides."""
    tx = await pair.begin()
    pair.wire.lost = 9
    with pytest.raises(UnavailableError):
        await pair.peer_uploads.take(await pair.grant(tx), body())
    assert await pair.left() == []
    writes = pair.writes.of(tx, TABLE)
    assert (writes.files, writes.length, writes.elsewhere, writes.area.entry(FILE)) == ({}, 0, {}, None)
    assert pair.fetches.wanted == {}  # the home had begun to fetch it


async def test_nobody_else_gives_a_file_up(pair: Pair) -> None:
    """Only the replica that receives a file can give it up."""
    tx = await pair.begin()
    await pair.peer_uploads.take(await pair.grant(tx), body())
    [part] = pair.fetches.wanted
    await pair.redirector.fail(tx.tid, TABLE, ReplicaId("r3"), part)
    assert list(pair.writes.of(tx, TABLE).elsewhere) == [part]
    await pair.redirector.fail(tx.tid, TABLE, R2, part)
    assert (pair.writes.of(tx, TABLE).elsewhere, pair.fetches.wanted) == ({}, {})


async def test_a_place_that_is_deleted_while_its_file_comes_in(pair: Pair) -> None:
    """When an attempt is aborted its file is refused at its end."""
    tx = await pair.begin()
    gate = asyncio.Event()
    upload = asyncio.create_task(pair.peer_uploads.take(await pair.grant(tx), body(gate=gate)))
    await until(lambda: pair.peer_uploads.tids() == {str(tx.tid)})
    await pair.writes.delete(tx, TABLE, ATTEMPT, recursive=True)
    gate.set()
    with pytest.raises(BadRequestError, match="was deleted"):
        await upload
    assert await pair.left() == []
    assert pair.fetches.wanted == {}


async def test_no_more_of_a_deleted_file_is_taken(pair: Pair) -> None:
    """The home itself does not read an aborted attempt's file to its end."""
    tx = await pair.begin()
    gate, sent = asyncio.Event(), 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b"x" * BUFFER_BYTES
            await gate.wait()

    upload = asyncio.create_task(pair.writes.upload(tx, TABLE, FILE, endless(), overwrite=False))
    await until(lambda: pair.writes.of(tx, TABLE).length)
    await pair.writes.delete(tx, TABLE, ATTEMPT, recursive=True)
    gate.set()
    with pytest.raises(BadRequestError, match="was deleted"):
        await upload
    assert (sent, pair.writes.of(tx, TABLE).length) == (2, 0)


async def test_uploads_have_a_bound(pair: Pair) -> None:
    """One upload more is refused at once, and leaves nothing; when another has ended there is room again."""
    tx = await pair.begin()
    gate, places = asyncio.Event(), [(*ATTEMPT, file_name(number)) for number in range(3)]
    here = pair.writes.upload(tx, TABLE, places[0], body(gate=gate), overwrite=False)
    uploads = [
        asyncio.create_task(here),
        asyncio.create_task(pair.peer_uploads.take(await pair.grant(tx, places[1]), body(gate=gate))),
    ]
    await until(lambda: pair.receiver._running == 2)
    for refused in (
        pair.writes.upload(tx, TABLE, places[2], body(), overwrite=False),
        pair.peer_uploads.take(await pair.grant(tx, places[2]), body()),
    ):
        with pytest.raises(UnavailableError, match=r"2 files .* \(uploads_max\)"):
            await refused
    gate.set()
    await asyncio.gather(*uploads)
    await pair.writes.upload(tx, TABLE, places[2], body(), overwrite=False)
    assert len(pair.writes.of(tx, TABLE).files) == 3


@pytest.mark.parametrize("told", [True, False])
async def test_a_transaction_that_ends_while_a_file_comes_in(pair: Pair, told: bool) -> None:
    """It is cut where the hint arrives, refused at its end where the hint is lost; nothing is left."""
    tx = await pair.begin()
    late, gate = await pair.grant(tx, (*ATTEMPT, file_name(1))), asyncio.Event()
    upload = asyncio.create_task(pair.peer_uploads.take(await pair.grant(tx), body(gate=gate)))
    await until(lambda: pair.peer_uploads.tids() == {str(tx.tid)})
    tx.ending.close(TxState.ROLLED_BACK, at=0.0, totals=(0, 0, 0), outcome=None, error=None)
    if told:
        pair.peer_uploads.cut([str(tx.tid)])
    else:
        gate.set()
    with pytest.raises(TokenFinishedError):
        await upload
    with pytest.raises(TokenFinishedError):
        await pair.peer_uploads.take(late, body())
    assert await pair.left() == []


async def test_one_grant_is_of_use_once(pair: Pair) -> None:
    """The second upload with a grant finds its path in use, and does not touch the first upload's file."""
    tx = await pair.begin()
    grant = await pair.grant(tx)
    await pair.peer_uploads.take(grant, body())
    before = await pair.left()
    with pytest.raises(BadRequestError, match="exists already"):
        await pair.peer_uploads.take(grant, body())
    assert await pair.left() == before
    await pair.close_job(tx)
    await pair.bring()
    assert (await pair.writes.seal(tx, TABLE)).rows == 1000


async def test_bounds_hold_elsewhere_too(pair: Pair) -> None:
    """The receiving replica knows the longest file; two concurrent files are checked when they are whole."""
    tx = await pair.begin()
    pair.limit(staged_bytes_max=len(DATA) * 3 // 2)
    with pytest.raises(TooLargeError):
        await pair.peer_uploads.take(await pair.grant(tx), body(DATA * 2))
    assert pair.writes.of(tx, TABLE).length == 0
    other, gate = (*ATTEMPT, file_name(1)), asyncio.Event()
    upload = asyncio.create_task(pair.peer_uploads.take(await pair.grant(tx, other), body(gate=gate)))
    await until(pair.peer_uploads.tids)
    await pair.peer_uploads.take(await pair.grant(tx), body())
    gate.set()
    with pytest.raises(TooLargeError, match="staged_bytes_max"):
        await upload
    assert pair.writes.of(tx, TABLE).length == len(DATA)
    pair.limit(staged_files_max=1)
    with pytest.raises(TooLargeError, match="staged_files_max=1"):
        await pair.peer_uploads.take(await pair.grant(tx, other), body())


async def test_peers_are_named_in_turn_with_the_home(pair: Pair) -> None:
    """Peers and home take turns; the home alone without peers, when behind, and when it is switched off."""
    tx = await pair.begin()

    async def named() -> list[bool]:
        found = [await pair.redirector.location(tx, TABLE, FILE, overwrite=True) for _ in range(4)]
        return [location is not None for location in found]

    assert sorted(await named()) == [False, False, True, True]
    pair.limit(upload_behind_bytes_max=len(DATA) - 1)
    await pair.peer_uploads.take(await pair.grant(tx), body())
    assert not any(await named())
    await pair.bring()
    assert any(await named())
    pair.limit(upload_spread=False)
    assert not any(await named())
    pair.limit(upload_spread=True)
    pair.peers = ()
    assert not any(await named())


async def test_a_task_that_is_done_over_takes_back_what_was_fetched(pair: Pair) -> None:
    """Its files are deleted here, where they were written, and wherever they were copied to."""
    tx = await pair.begin()
    await pair.peer_uploads.take(await pair.grant(tx), body())
    [part] = pair.fetches.wanted
    await pair.bring()
    await pair.writes.delete(tx, TABLE, ATTEMPT, recursive=True)
    assert pair.hints.dropped == [part]
    assert pair.home.catalog.reader.part(part) is None
    assert not (pair.home.files.data_dir / pair.files.part_path(part)).exists()
    unused = await pair.catalog.write(lambda db: jobs.drop_parts(db, [part]))  # the work of r2 for that hint
    await remove_files(pair.catalog, pair.files, unused)
    assert await pair.left() == []
    assert JOB in FILE[-1]


async def test_what_the_home_takes_itself_waits_for_nobody(pair: Pair) -> None:
    """Its bytes are here; peers are notified when its task commits, and the row of its part is made then."""
    tx = await pair.begin()
    await pair.writes.upload(tx, TABLE, FILE, body(), overwrite=False)
    assert (pair.hints.hinted, pair.home.catalog.reader.prepared()) == ([], [])
    await pair.close_job(tx)
    [(holder, [part])] = pair.hints.hinted
    assert holder is None
    assert pair.home.catalog.reader.nameless([part]) == {part}
    assert (await pair.writes.seal(tx, TABLE)).rows == 1000
    assert pair.home.catalog.reader.nameless([part]) == set()
    assert [meta.part for meta in tx.staged.stored.values()] == [part]
    assert tx.staged.take_unsealed() == []
