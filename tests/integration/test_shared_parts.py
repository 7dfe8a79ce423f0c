"""Transactions that share parts, on real agents: what writers and readers see of it, and what they do not."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.lab import Gates
from tests.support.histories.evidence import nothing_left
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import LabelExistsError, TableChangedError, TidelockError
from workloads.agents import ask

HOME, PEER = "r1", "r2"
CLIENTS = 12
SCHEMA = pa.schema([("who", pa.int64()), ("day", pa.string())])
#: The first commit waits there while others collect behind it.
BEFORE = "csnlog.commit.before"


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """A gate that holds back the multis of the home."""
    return Gates(tmp_path_factory.mktemp("gates"), {HOME: {BEFORE: "pause"}})


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, gates: Gates) -> LocalCluster:
    """One cluster for the module, with two tables; one of them has partitions."""
    made = module_cluster(settings=QUICK, environment_of={HOME: gates.environment(HOME)})
    with made.connect() as db:
        db.create_table("t", SCHEMA, partition_by=["day"])
        db.create_table("u", SCHEMA)
    return made


def data(who: int) -> pa.Table:
    """Return two rows of a writer, in one of two partitions."""
    return pa.table({"who": [who] * 2, "day": [f"d{who % 2}"] * 2}, schema=SCHEMA)


def at_once(local: LocalCluster, write: Callable[[Database, int], Any], writers: int = CLIENTS) -> list[Any]:
    """Let writers write at the home at once; return what each got, an error included."""
    start = threading.Barrier(writers, timeout=60)

    def run(who: int) -> Any:
        with local.connect(HOME) as db:
            start.wait()
            try:
                return write(db, who)
            except TidelockError as error:
                return error

    with ThreadPoolExecutor(writers) as threads:
        return list(threads.map(run, range(writers)))


def collected(local: LocalCluster, gates: Gates, write: Callable[[Database, int], Any]) -> list[Any]:
    """Let writers write at the home at once, behind a commit that waits until all of them do."""
    with ThreadPoolExecutor(1) as threads:
        with gates.open(HOME, BEFORE):
            writing = threads.submit(at_once, local, write)
            gates.await_hit(HOME, BEFORE)
            eventually(lambda: sealed(local) >= CLIENTS, what="all writers to wait")
        return writing.result()


def sealed(local: LocalCluster) -> int:
    """Return the number of transactions of the home that wait for their commit."""
    return sum(tx["state"] == "sealed" for tx in ask(local, HOME, "/transactions"))


def found(db: Database, table: str, csn: int) -> Counter[int]:
    """Return the number of rows of each writer at a CSN."""
    with db.snapshot(csn=csn) as snap:
        return Counter(snap.read(table).column("who").to_pylist())


def logged(db: Database) -> dict[str, dict[str, Any]]:
    """Return what the log says of each transaction."""
    return {tid["tid"]: tid for record in db.log() for tid in record["tids"]}


def test_writers_that_wait_together_share_parts(local: LocalCluster, gates: Gates) -> None:
    """Each row is there once, on each replica; each transaction has its own tid, and finds its parts."""
    done = collected(local, gates, lambda own, who: own.write({"t": data(who), "u": data(who)}))
    csn = max(one.csn for one in done)
    expected = Counter(dict.fromkeys(range(CLIENTS), 2))
    with local.connect(HOME) as db:
        assert len({one.tid for one in done}) == CLIENTS
        assert len(db.snapshot(csn=csn).parts("u")) <= CLIENTS / 2
        log = logged(db)
        carried = [one for one in done if log[one.tid]["carrier"]]
        assert len(carried) >= CLIENTS / 2
        for one in carried:
            entry = log[one.tid]
            assert entry["rows"] == {"default.t": 2, "default.u": 2}
            assert entry["entries"] == []
            added = log[entry["carrier"]]["entries"]
            assert {part["table"] for part in added} == {"default.t", "default.u"}
            explained = db.explain(one.tid)
            assert {part["part"] for part in explained["parts"]} == {part["part"] for part in added}
            assert explained["here"]["rows"] == 4
        shared = Counter(log[one.tid]["carrier"] for one in carried)
        for carrier, riders in shared.items():
            by_table: Counter[str] = Counter()
            for part in log[carrier]["entries"]:
                by_table[part["table"]] += part["rows"]
            assert by_table == {"default.t": 2 * riders, "default.u": 2 * riders}
    for replica in local.replicas:
        with local.connect(replica) as other:
            assert found(other, "t", csn) == found(other, "u", csn) == expected
            assert {other.outcome(one.tid).csn == one.csn for one in done} == {True}
        nothing_left(local.data_dir(replica))


def test_one_label_among_many_writers(local: LocalCluster, gates: Gates) -> None:
    """One of them commits; the others hear that the label exists; writers without it are not refused."""
    labels = [f"once {who % 3}" if who % 2 else None for who in range(CLIENTS)]
    ended = collected(local, gates, lambda own, who: own.write({"u": data(100 + who)}, label=labels[who]))
    committed = [who for who, end in enumerate(ended) if not isinstance(end, TidelockError)]
    refused = [end for end in ended if isinstance(end, TidelockError)]
    assert all(isinstance(end, LabelExistsError) for end in refused), ended
    expected = Counter({None: labels.count(None)}) + Counter({*labels} - {None})
    assert Counter(labels[who] for who in committed) == expected
    with local.connect(PEER) as db:
        rows = found(db, "u", max(ended[who].csn for who in committed))
        assert {who for who in rows if who >= 100} == {100 + who for who in committed}
        for end in refused:  # the refusal names the transaction that has the label
            assert db.outcome(end.details["tid"]).csn is not None


def test_a_table_that_changes_under_its_writers(local: LocalCluster) -> None:
    """A derived table gives its source another version: writers go on, and each row is there as told."""
    stop = threading.Event()
    told: Counter[int] = Counter()
    refusals: list[TidelockError] = []
    lock = threading.Lock()
    tables = ("v0", "v1", "v2")

    def write(own: Database, who: int) -> None:
        while not stop.is_set():
            try:
                own.write({table: data(who) for table in tables})
            except TidelockError as error:
                refusals.append(error)
            else:
                with lock:
                    told[who] += 2

    with local.connect(HOME) as db, ThreadPoolExecutor(1) as threads:
        for table in tables:
            db.create_table(table, SCHEMA)
        writing = threads.submit(at_once, local, write, 6)
        derived = pa.schema([("who", pa.int64()), ("n", pa.int64())])
        with local.connect(PEER) as other:
            for table in tables:
                before = sum(told.values())
                eventually(lambda: sum(told.values()) > before + 40)  # noqa: B023 - asked at once
                sql = "SELECT who, count(*) AS n FROM inserted GROUP BY who"
                other.create_table(f"{table}_sums", derived, derived_from=table, derived_sql=sql)
        stop.set()
        assert writing.result() == [None] * 6
        assert all(isinstance(error, TableChangedError) for error in refusals), refusals
        with db.begin(fresh=True) as tx:
            for table in tables:
                assert Counter(tx.read(table).column("who").to_pylist()) == told
