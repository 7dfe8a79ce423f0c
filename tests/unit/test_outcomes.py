"""Outcomes leave with their retention, and their labels with them: at the home of the transaction, once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.log_node import R1, LogNode, make_cluster
from tidelock.csnlog import codec, tree
from tidelock.csnlog.ids import Csn, ReplicaId, Tid
from tidelock.csnlog.memory import Call, Fault, MemoryEnsemble, MemoryStore, nth
from tidelock.csnlog.model import LabelState
from tidelock.csnlog.results import Ok
from tidelock.csnlog.store import Create, Delete
from tidelock.replica_agent import catalog_jobs as jobs
from tidelock.replica_agent.catalog import Catalog
from tidelock.replica_agent.outcomes import Outcomes


class Replica:
    """The catalog of r1, and ZooKeeper."""

    def __init__(self, catalog: Catalog, ensemble: MemoryEnsemble, store: MemoryStore, node: LogNode) -> None:
        self.catalog, self.ensemble, self.store = catalog, ensemble, store
        self.outcomes = Outcomes(R1, catalog, store, node.log.fenced)

    async def commits(self, csn: int, label: str | None, home: str = "r1", *, take: bool = True) -> Tid:
        """A transaction is committed in second ``csn``; its label is taken in ZooKeeper."""
        tid = Tid(Csn(1), ReplicaId(home), 1, csn)
        record = jobs.AppliedRecord(Csn(csn), csn * 1000, [jobs.AppliedTid(str(tid), [], label, True)], {})
        await self.catalog.write(lambda db: jobs.apply(db, [record]))
        if label is not None and take:
            data = codec.encode_label(LabelState(str(tid)))
            assert isinstance(await self.store.multi((Create(tree.label(label), data),)), Ok)
        return tid

    async def labels(self) -> int:
        """How many labels there are."""
        names = await self.store.children(tree.LABELS)
        assert isinstance(names, Ok)
        return len(names.value)

    def kept(self, *tids: Tid) -> list[bool]:
        """Which outcomes are kept."""
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
    """Those of other homes are theirs to give back; younger ones stay."""
    old = await replica.commits(2, "a")
    other = await replica.commits(3, "b", "r2")
    young = await replica.commits(5, "c")
    await replica.outcomes.forget(4000)
    assert replica.kept(old, other, young) == [False, False, True]
    assert await replica.labels() == 2
    assert isinstance(await replica.store.get(tree.label("b")), Ok)
    assert replica.catalog.reader.meta("outcome_floor") == 3


async def test_a_label_that_names_another_transaction_stays(replica: Replica) -> None:
    """It was given back, and taken anew."""
    first = await replica.commits(2, "a")
    await replica.store.multi((Delete(tree.label("a"), -1),))
    second = await replica.commits(3, "a")
    assert replica.catalog.reader.csn_of_label("a") == 3
    await replica.outcomes.forget(2500)
    assert replica.kept(first, second) == [False, True]
    assert await replica.labels() == 1


@pytest.mark.parametrize("fault", [Fault.NOT_CONNECTED, Fault.REPLY_LOST])
async def test_an_outcome_stays_while_its_label_may(replica: Replica, fault: Fault) -> None:
    """Else nobody would know that the label is to go."""
    old = await replica.commits(2, "a")

    def of_labels(call: Call) -> bool:
        return any(isinstance(op, Delete) for op in call.ops)

    replica.ensemble.plan = nth(1, fault, of_labels)
    await replica.outcomes.forget(4000)
    assert replica.kept(old) == [True]
    replica.ensemble.plan = None
    await replica.outcomes.forget(4000)
    assert replica.kept(old) == [False]
    assert await replica.labels() == 0


async def test_a_label_that_is_gone_already(replica: Replica) -> None:
    """A former run had deleted it before it was cut."""
    old = await replica.commits(2, "a", take=False)
    await replica.outcomes.forget(4000)
    assert replica.kept(old) == [False]
