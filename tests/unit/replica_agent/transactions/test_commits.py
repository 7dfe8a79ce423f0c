"""Sealed transactions over a real log: called off in time or too late, and unforeseen errors."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.support.aio import until
from tests.support.clusters.log_node import LogNode, make_cluster, tids_of
from tests.support.machines.copies_story import rules
from tests.support.rows import settings
from tidelock.csnlog.core.codec import decode_entries
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import AddPart, DefineTable, RemovePart
from tidelock.csnlog.core.results import Aborted, Committed
from tidelock.csnlog.core.store import LinkState
from tidelock.csnlog.log import CsnLog, Proposal
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, RequestFault, StoreRequest, nth
from tidelock.errors import CommitUnknownError, NotCommittedError, TooLargeError, TransactionClosedError
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.pack_writer import PartNumbers, StagedBytes, Stager
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.ending.closing import TransactionCloser
from tidelock.replica_agent.transactions.ending.commit import AppliedCommits, Commits, WaitFor
from tidelock.replica_agent.transactions.ending.commit_batching import GroupCommitGate
from tidelock.replica_agent.transactions.ending.copies import CopyMaker
from tidelock.replica_agent.transactions.ending.proposals import ProposalBuilder
from tidelock.replica_agent.transactions.ending.settlement import Settlement
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction, TxState
from tidelock.replication.core.copies import Copies
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.lag import LagVerdict
from tidelock.replication.core.model import Location, PartMeta
from tidelock.replication.partfs import PartFs

R1, R2 = ReplicaId("r1"), ReplicaId("r2")


class SilentPeers:
    """Peers that answer nothing (`Pusher`, `Fetcher`)."""

    def __init__(self) -> None:
        self.forgotten: list[Tid] = []

    def push(self, *_: object) -> None:
        """Send a transaction; no answer comes."""

    def forget(self, tid: Tid) -> None:
        """Tell the peers that a transaction is rolled back."""
        self.forgotten.append(tid)

    def decided(self, tid: Tid) -> None:
        """Send a committed transaction no more."""

    def cancel(self, tids: list[str]) -> None:
        """Stop fetching the parts of transactions."""


class CountedLocks:
    """The locks of transactions (`Removals`): whose are released."""

    def __init__(self) -> None:
        self.released: list[Tid] = []

    def committed(self, tx: Transaction, csn: Csn) -> None:
        """Keep the locks of a committed transaction."""

    async def release(self, tx: Transaction) -> None:
        """Release those of another."""
        self.released.append(tx.tid)


async def no_delay(_: float) -> LagVerdict:
    """No replica lags (`Membership`)."""
    return LagVerdict()


class Home:
    """A home with everything that ends a transaction; ``copies`` replicas have to hold each part."""

    def __init__(self, folder: Path, catalog: Catalog, log: CsnLog, *, boot: int, copies: int = 1) -> None:
        limits = settings(commit_timeout_s=60.0, wait_bound_s=0.3)
        files, numbers = PartFs(folder), PartNumbers(R1, boot)
        files.open()
        self.catalog, self.transactions = catalog, Transactions(R1, boot, limits, time.monotonic)
        self.peers, self.locks = SilentPeers(), CountedLocks()
        peers, removals, unused = cast("Any", self.peers), cast("Any", self.locks), cast("Any", None)
        self.copies = CopyMaker(
            machine=Copies(R1, rules(copies, version=1, r2="d2")),  # the start of r1 raised the roster
            stager=Stager(catalog=catalog, files=files, numbers=numbers, batch_bytes_max=1 << 20),
            pusher=peers,
            fetcher=peers,
            on_broken=lambda _: None,
        )
        self.settlement = Settlement(
            settings=limits, log=log, labels=unused, validation=unused, order=unused,
            clock=time.monotonic,
            proposals=ProposalBuilder(
                replica=R1, settings=limits, transactions=self.transactions, numbers=numbers,
                copies=self.copies, removals=removals,
            ),
        )  # fmt: skip
        closer = TransactionCloser(
            settings=limits, transactions=self.transactions, catalog=catalog, files=files,
            copies=self.copies, removals=removals,
        )  # fmt: skip
        self.commits = Commits(
            replica=R1, settings=limits, transactions=self.transactions, metrics=Metrics(),
            applied=AppliedCommits(
                reader=catalog.reader, waiters=CsnWaiters(Csn(100)), applied_on=unused, clock=time.monotonic
            ),
            settlement=self.settlement, delay=no_delay, clock=time.monotonic, closer=closer,
            staging=unused, carriers=unused, gate=GroupCommitGate(limits.commit_gather_s),
        )  # fmt: skip

    def begin(self) -> Transaction:
        """Begin a transaction that adds one small part."""
        tx = self.transactions.begin(Csn(1))
        data = b"the bytes of a part"
        part = self.settlement.proposals.numbers.next()
        meta = PartMeta(part, TableId("default.t"), "", 1, len(data), checksum(data))
        self.transactions.add(tx, StagedBytes(meta, data, tx.tid))
        return tx

    def commit(self, tx: Transaction) -> asyncio.Task[Committed | None]:
        """Request the commit of a transaction."""
        return asyncio.create_task(self.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=60.0))

    def check_rolled_back(self, tx: Transaction) -> None:
        """Nothing of a transaction is left: no lock, no row, no memory."""
        assert tx.state is TxState.ROLLED_BACK
        assert self.locks.released == [tx.tid]
        assert self.transactions.outcome(str(tx.tid)) == Aborted()
        assert self.catalog.reader.prepared() == []
        assert self.transactions.memory_bytes == 0


@pytest.fixture
async def ensemble() -> MemoryEnsemble:
    """An ensemble with a cluster."""
    made = MemoryEnsemble()
    await make_cluster(made.store("setup"))
    return made


@pytest.fixture
async def node(ensemble: MemoryEnsemble) -> AsyncIterator[LogNode]:
    """The log of r1, at rest."""
    async with LogNode(ensemble.store("r1")) as made:
        await until(lambda: made.log.fence > made.own.fence)
        yield made


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """A new catalog, closed at the end."""
    made = Catalog(tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    yield made
    await made.close()


async def test_a_commit_that_waits_for_copies_is_called_off(
    node: LogNode, catalog: Catalog, tmp_path: Path
) -> None:
    """The peers are silent, so it would wait for commit_timeout_s; the rollback ends it at once."""
    home = Home(tmp_path, catalog, node.log, boot=node.own.boot, copies=2)
    tx = home.begin()
    commit = home.commit(tx)
    await until(lambda: catalog.reader.prepared() == [str(tx.tid)])
    assert tx.state is TxState.SEALED
    await home.commits.roll_back(tx)
    home.check_rolled_back(tx)
    assert home.peers.forgotten == [tx.tid]
    for answer in (commit, home.commit(tx)):
        with pytest.raises(TransactionClosedError, match="called off before it had a CSN"):
            await answer
    await home.commits.roll_back(tx)
    assert tids_of(node.delivered) == {}


async def test_a_refusal_that_nobody_waits_for_is_no_unforeseen_error(
    node: LogNode, catalog: Catalog, tmp_path: Path
) -> None:
    """Its caller has given up: the refusal is logged as such, and not again as an error with a traceback."""
    unforeseen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: unforeseen.append(told["message"]))
    home = Home(tmp_path, catalog, node.log, boot=node.own.boot, copies=2)
    tx = home.begin()
    commit = home.commit(tx)
    await until(lambda: catalog.reader.prepared() == [str(tx.tid)])
    commit.cancel()
    await asyncio.wait({commit})
    await home.commits.roll_back(tx)
    home.check_rolled_back(tx)
    tx = commit = cast("Any", None)
    gc.collect()
    assert unforeseen == []


async def test_a_commit_that_waits_in_the_queue_is_called_off(
    ensemble: MemoryEnsemble, node: LogNode, catalog: Catalog, tmp_path: Path
) -> None:
    """ZooKeeper does not answer, so nothing leaves the queue; the rollback needs no answer."""
    home = Home(tmp_path, catalog, node.log, boot=node.own.boot)
    store = cast("Any", node.store)
    store.suspend()
    tx = home.begin()
    commit = home.commit(tx)
    await until(lambda: node.log.deciding(tx.tid))
    await home.commits.roll_back(tx)
    home.check_rolled_back(tx)
    store.resume()
    with pytest.raises(TransactionClosedError, match="called off"):
        await commit
    assert await node.log.commit(node.proposal(1000), timeout_s=30) == Committed(Csn(2))
    assert str(tx.tid) not in tids_of(node.delivered)


@pytest.mark.parametrize(
    ("fault", "in_time"), [(RequestFault.REQUEST_LOST, True), (RequestFault.REPLY_LOST, False)]
)
async def test_a_commit_in_doubt_is_called_off_with_the_truth(
    ensemble: MemoryEnsemble,
    node: LogNode,
    catalog: Catalog,
    tmp_path: Path,
    fault: RequestFault,
    in_time: bool,
) -> None:
    """Only ZooKeeper knows: a lost request turns out as a rollback, a lost answer as a commit."""
    home = Home(tmp_path, catalog, node.log, boot=node.own.boot)
    store = cast("Any", node.store)
    broken = nth(1, fault, lambda call: bool(call.ops) and call.store == "r1")

    def plan(call: StoreRequest) -> RequestFault | None:
        """Break the connection at the commit, and keep it broken."""
        found = broken(call)
        if found is not None:
            store.suspend()
        return found

    ensemble.plan = plan
    tx = home.begin()
    commit = home.commit(tx)
    await until(lambda: store.link is not LinkState.CONNECTED and node.log.deciding(tx.tid))
    with pytest.raises(CommitUnknownError, match="not decided yet"):
        await home.commits.roll_back(tx)
    assert tx.state is TxState.SEALED
    store.resume()
    if in_time:
        await home.commits.roll_back(tx)
        home.check_rolled_back(tx)
        with pytest.raises(TransactionClosedError, match="called off"):
            await commit
    else:
        with pytest.raises(TransactionClosedError, match="is committed at CSN 2") as late:
            await home.commits.roll_back(tx)
        assert (late.value.details["state"], late.value.details["csn"]) == ("committed", 2)
        assert await commit == Committed(Csn(2))
    await node.log.barrier()
    await until(lambda: node.reached == node.log.end)
    assert (str(tx.tid) in tids_of(node.delivered)) is not in_time


class Stumbling(CsnLog):
    """A log whose commit ends in an error that nobody has foreseen, ``before`` or after it was sent."""

    before = True

    async def commit(self, proposal: Proposal, *, timeout_s: float) -> Committed:
        """Commit, and stumble."""
        if not Stumbling.before:
            await super().commit(proposal, timeout_s=timeout_s)
        raise KeyError("nobody has foreseen this")


@pytest.mark.parametrize("before", [True, False], ids=["before it was sent", "after it was sent"])
async def test_an_unforeseen_error_leaves_no_sealed_transaction(
    node: LogNode, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """The log says what became of it: it stayed sealed with its locks until the next restart."""
    monkeypatch.setattr(Stumbling, "before", before)
    home = Home(tmp_path, catalog, node.log, boot=node.own.boot)
    monkeypatch.setattr(node.log, "__class__", Stumbling)
    tx = home.begin()
    commit = home.commit(tx)
    if before:
        with pytest.raises(NotCommittedError, match="unforeseen: KeyError"):
            await commit
        home.check_rolled_back(tx)
    else:
        assert await commit == Committed(Csn(2))
        assert tx.state is TxState.COMMITTED


async def test_a_table_that_is_in_zookeeper_is_in_no_manifest(
    node: LogNode, catalog: Catalog, tmp_path: Path
) -> None:
    """A manifest can be lost: its table would be in ZooKeeper for good, and in no catalog."""
    home = Home(tmp_path, catalog, node.log, boot=node.own.boot)
    home.settlement.proposals.settings = settings(inline_entries_bytes_max=1)
    tx = home.begin()
    definition = DefineTable(TableId("default.new"), 0, {"columns": ["x" * 128]})
    tx.staged.definitions.append(definition)
    tx.staged.removed[PartId("r2-1-1")] = TableId("default.t")
    [added] = tx.staged.parts
    found = await home.settlement.proposals.build(tx, 1.0)
    assert found.record.entries == (definition,)
    assert found.record.manifest is not None
    row = catalog.reader.part(found.record.manifest.part)
    assert row is not None
    assert row.file is not None
    location = Location(row.file, row.offset, row.length, row.blocks)
    removing, adding = decode_entries(PartFs(tmp_path).read(location))
    assert isinstance(removing, RemovePart)
    assert isinstance(adding, AddPart)
    assert (removing.part, adding.part) == ("r2-1-1", added.part)


async def test_the_widest_table_of_the_defaults_fits_a_record(
    node: LogNode, catalog: Catalog, tmp_path: Path
) -> None:
    """All columns that a table may have, with the longest names and the longest names of types."""
    home = Home(tmp_path, catalog, node.log, boot=node.own.boot)
    tx = home.begin()
    columns = [
        (f"column_{number:04}_{'x' * 116}", pa.decimal128(38, 18))
        for number in range(AgentSettings.model_fields["columns_max"].default)
    ]
    widest = TableSchema.from_request("new", pa.schema(columns))
    tx.staged.definitions.append(DefineTable(widest.id, 0, widest.definition()))
    tx.staged.defined_at = 0
    assert await home.commit(tx)


async def test_a_table_that_no_record_has_room_for_is_refused(
    node: LogNode, catalog: Catalog, tmp_path: Path
) -> None:
    """Its definition is not moved into a manifest, which can be lost without the znode of the table."""
    home = Home(tmp_path, catalog, node.log, boot=node.own.boot)
    tx = home.begin()
    tx.staged.definitions.append(DefineTable(TableId("default.new"), 0, {"columns": ["x" * 128] * 4000}))
    with pytest.raises(TooLargeError, match=r"a record has room for 385024 .* fewer columns, or shorter"):
        await home.commit(tx)
    home.check_rolled_back(tx)
