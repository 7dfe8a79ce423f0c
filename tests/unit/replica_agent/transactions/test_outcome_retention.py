"""Outcomes and their labels are deleted after their retention: once, at the home of the transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.clusters.log_node import R1, LogNode, make_cluster
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, ReplicaId, Tid
from tidelock.csnlog.core.model import LabelState
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Create, Delete, SetData
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, MemoryStore, RequestFault, StoreRequest, nth
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import OutcomeRow
from tidelock.replica_agent.storage.catalog_schema import SCHEMA
from tidelock.replica_agent.transactions.ending.abandoned_labels import PAUSE_S, AbandonedLabels
from tidelock.replica_agent.transactions.ending.outcome_retention import OutcomeRetention


class Replica:
    """The catalog of r1, and ZooKeeper."""

    def __init__(self, catalog: Catalog, ensemble: MemoryEnsemble, store: MemoryStore, node: LogNode) -> None:
        self.catalog, self.ensemble, self.store, self.node = catalog, ensemble, store, node
        self.outcomes = OutcomeRetention(R1, catalog, store, node.log.fenced)

    async def commits(
        self, csn: int, label: str | None, home: str = "r1", *, take: bool = True, batch: int | None = None
    ) -> Tid:
        """Commit a transaction in second ``csn``; its label is created, or moved, in ZooKeeper."""
        tid = Tid(Csn(1), ReplicaId(home), 1, csn)
        applied = jobs.AppliedTid(str(tid), [], label, True, batch)
        await self.catalog.write(
            lambda db: jobs.apply(db, [jobs.AppliedRecord(Csn(csn), csn * 1000, [applied], {})])
        )
        if label is not None and take:
            data = codec.encode_label(LabelState(str(tid), batch))
            path = tree.label(label)
            there = isinstance(await self.store.get(path), Ok)
            op = SetData(path, data) if there and batch is not None else Create(path, data)
            assert isinstance(await self.store.multi((op,)), Ok)
        return tid

    async def labels(self) -> int:
        """Return the number of labels."""
        names = await self.store.children(tree.LABELS)
        assert isinstance(names, Ok)
        return len(names.value)

    async def deletions(self) -> int:
        """Return the version of ``labels``, which deletions of streams' labels raise."""
        node = await self.store.get(tree.LABELS)
        assert isinstance(node, Ok)
        return node.value.version

    def kept(self, *tids: Tid) -> list[bool]:
        """Return for each transaction whether its outcome is kept."""
        return [self.catalog.reader.outcome(str(tid)) is not None for tid in tids]


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    """A replica on a new cluster."""
    ensemble = MemoryEnsemble()
    store = ensemble.store("r1")
    await make_cluster(store)
    catalog = Catalog(tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    async with LogNode(store) as node:
        yield Replica(catalog, ensemble, store, node)
    await catalog.close()


async def test_a_label_goes_with_its_outcome(replica: Replica) -> None:
    """Labels of other homes are released by those; younger ones stay."""
    old = await replica.commits(2, "a")
    other = await replica.commits(3, "b", "r2")
    young = await replica.commits(5, "c")
    await replica.outcomes.forget(4000, 4000, 0)
    assert replica.kept(old, other, young) == [False, False, True]
    assert await replica.labels() == 2
    assert isinstance(await replica.store.get(tree.label("b")), Ok)
    assert replica.catalog.reader.meta("outcome_floor") == 3


class Ended(AbandonedLabels):
    """The release of labels of homes that have ended, by r1, as a test moves its clock."""

    def __init__(self, replica: Replica, ended: dict[str, int]) -> None:
        self.now = 0.0
        super().__init__(
            replica=R1,
            store=replica.store,
            fenced=replica.node.log.fenced,
            reader=replica.catalog.reader,
            ended=lambda: {ReplicaId(home): boot for home, boot in ended.items()},
            clock=lambda: self.now,
        )

    async def later(self) -> None:
        """Release after the pause."""
        self.now += PAUSE_S
        await self.release()


async def test_labels_of_homes_that_have_ended_are_released_after_their_retention(replica: Replica) -> None:
    """No home would release them, and their names would be taken forever."""
    await replica.commits(2, "of r2", "r2")
    await replica.commits(3, "of r3", "r3")
    await replica.commits(5, "of r2, younger", "r2")
    labels = Ended(replica, {"r2": 1})
    await labels.release()
    assert await replica.labels() == 3
    await replica.outcomes.forget(4000, 4000, 0)
    await labels.later()
    assert await replica.labels() == 2
    assert isinstance(await replica.store.get(tree.label("of r3")), Ok)
    await replica.outcomes.forget(6000, 6000, 0)
    await labels.later()
    assert await replica.labels() == 1


async def test_a_home_that_is_struck_again_is_looked_at_again(replica: Replica) -> None:
    """It came back between the strikes, and its new life has labels of its own."""
    ended = {"r2": 1}
    labels = Ended(replica, ended)
    await labels.release()
    await replica.commits(2, "of r2", "r2")
    await replica.outcomes.forget(4000, 4000, 0)
    await labels.later()
    assert await replica.labels() == 1, "r2 held nothing when this life of it ended"
    ended["r2"] = 2
    await labels.later()
    assert await replica.labels() == 0


async def test_a_home_that_comes_back_releases_what_its_new_catalog_does_not_know(replica: Replica) -> None:
    """It was struck for longer than outcomes are kept; the catalog that it cloned has none of them."""
    await replica.commits(2, "mine")
    await replica.commits(3, "of r2", "r2")
    await replica.commits(9, "mine, younger")
    await replica.catalog.write(lambda db: jobs.prune_outcomes(db, 8000, 8000, 8000))
    labels = Ended(replica, {})
    await labels.release()
    assert await replica.labels() == 2
    assert isinstance(await replica.store.get(tree.label("of r2")), Ok)
    assert isinstance(await replica.store.get(tree.label("mine, younger")), Ok)


async def test_labels_are_not_read_all_the_time(replica: Replica) -> None:
    """A shard may have 100,000, and a home that was removed holds its labels for a month."""
    await replica.commits(5, "of r2", "r2")
    labels = Ended(replica, {"r2": 1})
    await labels.release()
    read: list[StoreRequest] = []
    replica.ensemble.plan = read.append
    await labels.release()
    assert read == []
    await labels.later()
    assert [call for call in read if call.path.startswith(tree.LABELS)]


async def test_a_label_that_is_created_again_meanwhile_is_not_released(replica: Replica) -> None:
    """Another replica releases it between the read and the deletion, and a new run takes the name (F5)."""
    await replica.commits(2, "a", "r2")
    await replica.outcomes.forget(4000, 4000, 0)
    path = tree.label("a")
    again = codec.encode_label(LabelState("9-r1-1-9"))
    raced: list[StoreRequest] = []

    def plan(call: StoreRequest) -> None:
        if not raced and any(isinstance(op, Delete) for op in call.ops):
            raced.append(call)
            for ops in ((Delete(path, 0), SetData(tree.LABELS)), (Create(path, again),)):
                replica.ensemble.tree.apply(ops, 0)

    replica.ensemble.plan = plan
    await Ended(replica, {"r2": 1}).release()
    assert raced
    found = await replica.store.get(path)
    assert isinstance(found, Ok)
    assert found.value.data == again


async def test_a_label_that_names_another_transaction_stays(replica: Replica) -> None:
    """It was released, and another transaction has taken it."""
    first = await replica.commits(2, "a")
    await replica.store.multi((Delete(tree.label("a"), -1),))
    second = await replica.commits(3, "a")
    await replica.outcomes.forget(2500, 2500, 0)
    assert replica.kept(first, second) == [False, True]
    assert await replica.labels() == 1


@pytest.mark.parametrize("fault", [RequestFault.NOT_CONNECTED, RequestFault.REPLY_LOST])
async def test_an_outcome_stays_while_its_label_may(replica: Replica, fault: RequestFault) -> None:
    """Otherwise no replica would know that the label is to be deleted."""
    old = await replica.commits(2, "a")

    def of_labels(call: StoreRequest) -> bool:
        return any(isinstance(op, Delete) for op in call.ops)

    replica.ensemble.plan = nth(1, fault, of_labels)
    await replica.outcomes.forget(4000, 4000, 0)
    assert replica.kept(old) == [True]
    replica.ensemble.plan = None
    await replica.outcomes.forget(4000, 4000, 0)
    assert replica.kept(old) == [False]
    assert await replica.labels() == 0


async def test_a_label_that_is_gone_already(replica: Replica) -> None:
    """A former run had deleted it before it was interrupted."""
    old = await replica.commits(2, "a", take=False)
    await replica.outcomes.forget(4000, 4000, 0)
    assert replica.kept(old) == [False]


class TestStreams:
    """The label of a streaming query moves; it stays, with the outcome of its last batch, for longer."""

    async def test_the_last_batch_stays_with_its_label(self, replica: Replica) -> None:
        """The outcomes of former batches are forgotten like others, at any home."""
        batches = [await replica.commits(n, "query", f"r{n % 2 + 1}", batch=n) for n in (2, 3, 4)]
        plain = await replica.commits(5, None)
        await replica.outcomes.forget(6000, 6000, 3000)
        assert replica.kept(*batches, plain) == [False, False, True, False]
        assert replica.catalog.reader.run_of_batch("query", 4) == OutcomeRow(str(batches[2]), Csn(4), 4000)
        assert replica.catalog.reader.run_of_batch("query", 3) is None
        assert await replica.labels() == 1
        assert replica.catalog.reader.meta("outcome_floor") == 5

    async def test_it_ends_when_it_has_not_moved_for_long(self, replica: Replica) -> None:
        """Its home releases it; a client that has read it before is refused: `labels` has another version."""
        mine = await replica.commits(2, "mine", batch=7)
        others = await replica.commits(3, "others", "r2", batch=7)
        before = await replica.deletions()
        await replica.outcomes.forget(6000, 6000, 6000)
        assert replica.kept(mine, others) == [False, False]
        assert isinstance(await replica.store.get(tree.label("others")), Ok)
        assert await replica.labels() == 1
        assert await replica.deletions() == before + 1

    async def test_one_that_another_home_has_moved_meanwhile_stays(self, replica: Replica) -> None:
        """The own catalog does not know of it yet; the znode does."""
        old = await replica.commits(2, "query", batch=7)
        data = codec.encode_label(LabelState("1-r2-1-9", 8))
        await replica.store.multi((SetData(tree.label("query"), data),))
        before = await replica.deletions()
        await replica.outcomes.forget(6000, 6000, 6000)
        assert replica.kept(old) == [False]
        assert await replica.labels() == 1
        assert await replica.deletions() == before

    async def test_one_that_is_moved_between_look_and_deletion_stays(self, replica: Replica) -> None:
        """The deletion is at the version that was read; the next call continues."""
        old = await replica.commits(2, "query", batch=7)

        def move_first(call: StoreRequest) -> bool:
            if any(isinstance(op, Delete) for op in call.ops):
                replica.ensemble.plan = None
                data = codec.encode_label(LabelState("1-r2-1-9", 8))
                replica.ensemble.tree.apply((SetData(tree.label("query"), data),), 0)
            return False

        replica.ensemble.plan = nth(1, RequestFault.NOT_CONNECTED, move_first)
        await replica.outcomes.forget(6000, 6000, 6000)
        assert replica.kept(old) == [True]
        await replica.outcomes.forget(6000, 6000, 6000)
        assert replica.kept(old) == [False]
        assert await replica.labels() == 1

    async def test_plain_labels_go_without_a_word_to_those_who_move(self, replica: Replica) -> None:
        """They go often, and nobody moves them."""
        await replica.commits(2, "plain")
        before = await replica.deletions()
        await replica.outcomes.forget(6000, 6000, 0)
        assert await replica.labels() == 0
        assert await replica.deletions() == before

    @pytest.mark.parametrize("old", [3, 500])
    def test_that_of_a_query_with_many_batches(self, old: int) -> None:
        """The work depends on the forgotten outcomes alone: commits wait for the catalog's writer."""
        count, steps = 1000, 0

        def step() -> None:
            nonlocal steps
            steps += 1

        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            db.executescript(SCHEMA)
            rows = ((f"1-r1-1-{n}", n, n, "query", n) for n in range(1, count + 1))
            sql = "INSERT INTO outcomes (tid, csn, time_ms, label, batch) VALUES (?, ?, ?, ?, ?)"
            db.executemany(sql, rows)
            db.set_progress_handler(step, 1)
            assert jobs.prune_outcomes(db, old + 1, 0, 0) == old
            db.set_progress_handler(None, 1)
            assert db.execute("SELECT count(*) FROM outcomes").fetchone() == (count - old,)
        assert steps < 1000 + 200 * (old + 1)  # the search for the end of the old ones, and them
