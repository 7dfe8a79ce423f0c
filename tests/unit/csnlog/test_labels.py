"""Labels: the right to commit under one, its elements of the multi, and the answer to a late run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.clusters.log_node import R1, R2, LogNode, make_cluster
from tests.support.machines.committing import Bench, proposal, tid
from tests.support.rows import settings
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.batch import Proposal
from tidelock.csnlog.core.committer_messages import Cause, Rejected
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.labels import LabelRead, Make, Move, OtherKind, Taken, judge
from tidelock.csnlog.core.model import LabelState, TidRecord
from tidelock.csnlog.core.results import Committed, Ok
from tidelock.csnlog.core.store import Check, Create, Delete, SetData
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, MemoryStore, RequestFault, nth
from tidelock.errors import BadRequestError, LabelExistsError, LabelMovedError, UnavailableError
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.transactions.ending.labels import Labels

LABEL = tree.label("query")


@pytest.mark.parametrize(
    ("batch", "state", "expected"),
    [
        (None, None, Make()),
        (0, None, Make()),
        (7, None, Make()),
        (None, LabelState("t"), Taken(LabelState("t"))),
        (7, LabelState("t", 7), Taken(LabelState("t", 7))),
        (6, LabelState("t", 7), Taken(LabelState("t", 7))),
        (8, LabelState("t", 7), Move(3, 5)),
        (99, LabelState("t", 7), Move(3, 5)),
        (0, LabelState("t"), OtherKind(LabelState("t"))),
        (None, LabelState("t", 0), OtherKind(LabelState("t", 0))),
    ],
)
def test_who_may_commit_under_a_label(batch: int | None, state: LabelState | None, expected: object) -> None:
    """A stream's label moves upwards, any other is made once, and none changes its kind."""
    assert judge(batch, LabelRead(state, 3, 5)) == expected


def batch_of(
    counter: int, batch: int, move: Move | None = None, *, label: str = "query", head: int | None = None
) -> Proposal:
    """A batch of a streaming query that wants to commit."""
    return Proposal(TidRecord(tid(counter), label=label, batch=batch), {}, (), label, head, move)


class TestMulti:
    """The elements of the commit multi for labels, and the end of the transactions that it refuses."""

    def test_a_batch_makes_the_label_or_moves_it(self) -> None:
        """A move is at the version that was read, and checks that no stream's label was deleted since."""
        bench = Bench()
        bench.propose(proposal(9))
        bench.serve_all()
        bench.propose(batch_of(1, 4))
        assert Create(LABEL, codec.encode_label(LabelState(tid(1), 4))) in bench.ops()
        bench.serve_all()
        bench.propose(batch_of(2, 5, Move(0, 0)))
        moved = SetData(LABEL, codec.encode_label(LabelState(tid(2), 5)), 0)
        assert {Check(tree.LABELS, 0), moved} <= set(bench.ops())
        bench.serve_all()
        assert bench.decision(2) == Committed(Csn(4))
        assert bench.version(LABEL) == 1

    def test_moves_of_several_labels_share_one_check(self) -> None:
        """Each path is checked once in a multi."""
        bench = Bench()
        bench.propose(batch_of(1, 1), batch_of(2, 1, label="other"))
        bench.serve_all()
        bench.propose(proposal(3))
        bench.propose(batch_of(4, 2, Move(0, 0)), batch_of(5, 2, Move(0, 0), label="other"))
        bench.serve()
        assert [op for op in bench.ops() if op.path == tree.LABELS] == [Check(tree.LABELS, 0)]
        bench.serve_all()
        assert bench.decision(4) == bench.decision(5)

    def test_those_that_have_read_different_deletions_travel_apart(self) -> None:
        """One of them is certainly refused, and must not make the other one fail."""
        bench = Bench()
        bench.propose(batch_of(1, 1), batch_of(2, 1, label="other"))
        bench.serve_all()
        bench.propose(proposal(3))
        bench.propose(batch_of(4, 2, Move(0, 7)), batch_of(5, 2, Move(0, 0), label="other"), proposal(6))
        bench.serve_all()
        assert bench.decision(4) == Rejected(Cause.LABEL_MOVED, tree.LABELS)
        assert isinstance(bench.decision(5), Committed)
        assert isinstance(bench.decision(6), Committed)

    def test_two_batches_of_one_query_travel_apart(self) -> None:
        """The second one is refused by its version, and judged again by what it reads then."""
        bench = Bench()
        bench.propose(batch_of(1, 1))
        bench.serve_all()
        bench.propose(proposal(2))
        bench.propose(batch_of(3, 2, Move(0, 0)), batch_of(4, 3, Move(0, 0)))
        bench.serve_all()
        assert bench.decision(3) == Committed(Csn(4))
        assert bench.decision(4) == Rejected(Cause.LABEL_MOVED, LABEL)

    @pytest.mark.parametrize(
        ("meanwhile", "cause"),
        [
            ((SetData(LABEL, b"x"),), Cause.LABEL_MOVED),
            ((Delete(LABEL, 0),), Cause.LABEL_MOVED),
            ((Delete(LABEL, 0), Create(LABEL), SetData(tree.LABELS)), Cause.LABEL_MOVED),
        ],
    )
    def test_what_others_do_to_the_label_meanwhile(self, meanwhile: tuple[object, ...], cause: Cause) -> None:
        """Only the transaction whose label was moved, deleted or made again is refused."""
        bench = Bench()
        bench.propose(batch_of(1, 1))
        bench.serve_all()
        for op in meanwhile:
            assert isinstance(bench.apply((op,)), Ok)  # type: ignore[arg-type]
        bench.propose(proposal(2))
        bench.propose(batch_of(3, 2, Move(0, 0)), proposal(4))
        bench.serve_all()
        decision = bench.decision(3)
        assert isinstance(decision, Rejected)
        assert decision.cause is cause
        assert isinstance(bench.decision(4), Committed)

    def test_a_batch_whose_label_was_made_meanwhile(self) -> None:
        """A transaction that read no label reads again."""
        bench = Bench()
        bench.propose(batch_of(1, 1))
        bench.serve_all()
        bench.propose(batch_of(2, 2))
        bench.serve_all()
        assert bench.decision(2) == Rejected(Cause.LABEL_EXISTS, LABEL)


@pytest.fixture
async def ensemble() -> MemoryEnsemble:
    """An ensemble with a cluster."""
    ensemble = MemoryEnsemble()
    await make_cluster(ensemble.store("setup"))
    return ensemble


@pytest.fixture
async def node(ensemble: MemoryEnsemble) -> AsyncIterator[LogNode]:
    """The log of r1."""
    async with LogNode(ensemble.store("r1")) as node:
        yield node


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """The catalog of r1."""
    catalog = Catalog(tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    yield catalog
    await catalog.close()


async def test_a_label_is_read_with_both_versions(ensemble: MemoryEnsemble, node: LogNode) -> None:
    """The version of `labels` is read before that of the label."""
    assert await node.log.label("query") == LabelRead(None)
    data = codec.encode_label(LabelState("1-r2-1-1", 3))
    ensemble.tree.apply((Create(LABEL, data), SetData(LABEL, data), SetData(tree.LABELS)), 0)
    expected = LabelRead(LabelState("1-r2-1-1", 3), 1, 1)
    assert await node.log.label("query") == expected
    assert await node.log.label("query", newest=True) == expected


async def test_a_label_that_cannot_be_read(ensemble: MemoryEnsemble, node: LogNode) -> None:
    """A read that is lost is made again; without a connection nothing is known."""
    ensemble.plan = nth(1, RequestFault.NOT_CONNECTED, lambda call: call.path == LABEL)
    assert await node.log.label("query") == LabelRead(None)
    store = node.store
    assert isinstance(store, MemoryStore)
    store.suspend()
    with pytest.raises(UnavailableError):
        await node.log.label("query")
    store.resume()


async def test_a_commit_that_meets_a_moved_label(ensemble: MemoryEnsemble, node: LogNode) -> None:
    """A moved label gives another error than an existing one, so that the caller reads it again."""
    first = batch_of(1, 1)
    await node.log.commit(first, timeout_s=30)
    with pytest.raises(LabelMovedError) as caught:
        await node.log.commit(batch_of(2, 2, Move(9, 0)), timeout_s=30)
    assert caught.value.details["label"] == "query"


class TestLabels:
    """The answers to transactions."""

    @pytest.fixture
    def labels(self, node: LogNode, catalog: Catalog) -> Labels:
        """The labels of r1, where no record is applied."""
        return Labels(node.log, catalog.reader, CsnWaiters(Csn(1)), settings(wait_bound_s=0.05))

    async def test_without_a_connection_begin_refuses_nobody(self, labels: Labels, node: LogNode) -> None:
        """Without a connection `begin` accepts a label, since the commit checks it; a status is an error."""
        assert isinstance(node.store, MemoryStore)
        node.store.suspend()
        await labels.refuse_repeated("query", 3)
        with pytest.raises(UnavailableError):
            await labels.place("query", 3, "1-r1-1-9", 1.0)
        with pytest.raises(UnavailableError):
            await labels.status("query")
        node.store.resume()

    async def test_a_first_run_that_is_not_applied_here(
        self, labels: Labels, ensemble: MemoryEnsemble
    ) -> None:
        """A second run is refused without a CSN if the first one is not applied here."""
        async with LogNode(ensemble.store("r2"), R2) as other:
            first = Proposal(TidRecord(str(other.tid(1)), label="query", batch=4), {}, (), "query")
            await other.log.commit(first, timeout_s=30)
        with pytest.raises(LabelExistsError, match="not known here") as caught:
            await labels.refuse_repeated("query", 4)
        assert caught.value.details == {"label": "query", "csn": None, "tid": None, "batch": 4}
        status = await labels.status("query")
        assert (status.tid, status.batch, status.csn, status.time_ms) == (first.tid, 4, None, None)

    async def test_a_first_run_that_is_applied_while_it_is_looked_for(
        self, node: LogNode, catalog: Catalog
    ) -> None:
        """The second run waits, within its time, until the first one is applied."""
        waiters = CsnWaiters(Csn(1))
        labels = Labels(node.log, catalog.reader, waiters, settings(wait_bound_s=30.0))
        committed = await node.log.commit(batch_of(1, 4), timeout_s=30)
        late = asyncio.create_task(labels.refuse_repeated("query", 4))
        await asyncio.sleep(0)
        applied = jobs.AppliedTid(tid(1), [], "query", True, 4)
        record = jobs.AppliedRecord(committed.csn, 7000, [applied], {})
        await catalog.write(lambda db: jobs.apply(db, [record]))
        waiters.advance(committed.csn)
        with pytest.raises(LabelExistsError) as caught:
            await late
        assert (caught.value.details["csn"], caught.value.details["tid"]) == (committed.csn, tid(1))
        assert R1 in caught.value.details["tid"]
        with pytest.raises(BadRequestError, match="belongs to a streaming query, at batch 4"):
            await labels.refuse_repeated("query", None)
        assert await labels.place("query", 5, tid(2), 1.0) == Move(0, 0)
        assert await labels.place("free", 5, tid(2), 1.0) is None

    async def test_progress_that_is_not_known_here_is_an_error(
        self, labels: Labels, ensemble: MemoryEnsemble, catalog: Catalog
    ) -> None:
        """An answer without it would have a consumer begin again; another replica is asked instead."""
        async with LogNode(ensemble.store("r2"), R2) as other:
            first = TidRecord(str(other.tid(1)), label="query", batch=4, progress="offset 9")
            await other.log.commit(Proposal(first, {}, (), "query"), timeout_s=30)
        with pytest.raises(UnavailableError, match="keeps progress; ask again, or ask another replica"):
            await labels.status("query")
        # Its record is passed over: the label goes back, and the batch before is the newest one.
        applied = jobs.AppliedTid(tid(7), [], "query", True, 3, progress="offset 6")
        await catalog.write(lambda db: jobs.apply(db, [jobs.AppliedRecord(Csn(3), 7000, [applied], {})]))
        store = ensemble.store("operator")
        former = codec.encode_label(LabelState(first.tid, 3, progress=True))
        await store.multi((SetData(tree.label("query"), former, 0),))
        status = await labels.status("query")
        assert (status.tid, status.batch, status.csn, status.progress) == (tid(7), 3, 3, "offset 6")
