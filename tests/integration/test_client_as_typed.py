"""Queries of a client outside of a snapshot, and the numbers of rows that a commit has changed."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tests.support.waiting import eventually
from tidelock.client import CommitResult, Database
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import BadRequestError, UnknownTableError

NUMBERS = itertools.count(1)
ROWS = pa.table({"k": [1, 2, 3], "day": ["a", "a", "b"], "n": [10, 20, 30]})


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Two replicas; nothing is left over at the end."""
    made = module_cluster(replicas=2, settings={**QUICK, "snapshot_ttl_s": 2})
    yield made
    for replica in made.replicas:
        nothing_left(made.data_dir(replica))


@pytest.fixture
def db(local: LocalCluster) -> Iterator[Database]:
    """A client."""
    with local.connect("r1") as found:
        yield found


@pytest.fixture
def table(db: Database) -> str:
    """A table of three rows in two partitions."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, ROWS, partition_by=["day"], properties={"compaction": "off"})
    db.insert(name, ROWS)
    return name


def counts(result: CommitResult) -> tuple[int, int, int]:
    """Return the rows that were inserted, updated and deleted."""
    return result.rows_inserted, result.rows_updated, result.rows_deleted


#: Runs on a client, and on a transaction.
Statement = Callable[[Any, str], Any]
CHANGED = pa.table({"k": [3, 4], "day": ["b", "b"], "n": [0, 0]})
STATEMENTS: dict[str, tuple[Statement, tuple[int, int, int]]] = {
    "insert": (lambda db, table: db.insert(table, ROWS), (3, 0, 0)),
    "insert of many": (lambda db, table: db.insert(table, ROWS.take([0] * 40_000)), (40_000, 0, 0)),
    "delete": (lambda db, table: db.delete(table, "n > 10"), (0, 0, 2)),
    "delete of nothing": (lambda db, table: db.delete(table, "n > 1000"), (0, 0, 0)),
    "update": (lambda db, table: db.update(table, {"n": "n + 1"}, "day = 'a'"), (0, 2, 0)),
    "upsert": (lambda db, table: db.upsert(table, CHANGED, on=["k"]), (1, 1, 0)),
    "merge": (lambda db, table: db.merge(table, CHANGED, on=["k"], when_matched_delete="true"), (1, 0, 1)),
    "drop_partition": (lambda db, table: db.drop_partition(table, {"day": "a"}), (0, 0, 2)),
    "truncate": (lambda db, table: db.truncate(table), (0, 0, 3)),
    "replace_partition": (
        lambda db, table: db.replace_partition(table, {"day": "b"}, ROWS.slice(2)),
        (1, 0, 1),
    ),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_tells_how_many_rows_it_has_changed(db: Database, table: str, name: str) -> None:
    """As a transaction of its own, and as a part of one."""
    run, expected = STATEMENTS[name]
    assert counts(run(db, table)) == expected
    db.truncate(table)
    db.insert(table, ROWS)
    with db.begin() as tx:
        run(tx, table)
        assert counts(tx.commit()) == expected


def test_a_transaction_counts_all_of_its_statements(db: Database, table: str) -> None:
    """Also SQL, a moved partition, and rows that waited for the begin; a repeated commit tells the same."""
    other = f"{table}_other"
    db.create_table(other, ROWS, partition_by=["day"])
    tx = db.begin()
    tx.insert(table, ROWS)
    tx.sql(f"insert into {table} select k + 10, day, n from {table} where k = 1")
    tx.move_partition(table, {"day": "b"}, into=other)
    tx.update(table, {"n": "0"}, "k = 11")
    first = tx.commit()
    assert counts(first) == (3 + 2 + 2, 2, 2)
    assert tx.commit() == first
    assert counts(db.write({table: ROWS, other: ROWS})) == (6, 0, 0)


def test_queries_outside_of_a_snapshot(db: Database, table: str) -> None:
    """`sql`, `read` and `scan` read the newest rows, or those of a CSN or a time, as ISO text too."""
    old = db.update(table, {"n": "0"}, "k = 1")
    assert old.csn is not None
    assert old.time is not None
    new = db.delete(table, "k = 1")
    sql = f"select count(*) as rows, sum(n)::bigint as n from {table} where k > ?"
    assert db.sql(sql, [0]).to_pylist() == [{"rows": 2, "n": 50}]
    assert db.sql(sql, [0], csn=old.csn).to_pylist() == [{"rows": 3, "n": 50}]
    assert db.sql(sql, [0], csn=old.csn - 1).to_pylist() == [{"rows": 3, "n": 60}]
    assert new.time is not None
    if new.time > old.time:
        assert db.sql(sql, [0], at=old.time.isoformat()).to_pylist() == [{"rows": 3, "n": 50}]
        assert db.read(table, ["k"], at=old.time).num_rows == 3
    assert db.read(table, ["n"], "k = ?", [1], csn=old.csn).to_pylist() == [{"n": 0}]
    scan = db.scan(table, ["k"], "n >= ?", [20])
    assert (scan.count(), sorted(scan.to_table()["k"].to_pylist())) == (2, [2, 3])
    assert db.scan(table, csn=old.csn).count() == 3
    assert sum(batch.num_rows for batch in db.scan(table).to_batches()) == 2


def test_wrong_queries_outside_of_a_snapshot(db: Database, table: str) -> None:
    """As at a snapshot."""
    with pytest.raises(UnknownTableError):
        db.sql("select * from nowhere")
    with pytest.raises(BadRequestError):
        db.sql(f"insert into {table} select * from {table}")
    with pytest.raises(BadRequestError):
        db.scan(table, csn=1, at="2026-01-01T00:00:00Z").count()


def test_a_query_leaves_no_snapshot_behind(local: LocalCluster, db: Database, table: str) -> None:
    """The snapshot of a query ends with its rows, and with a stream that is closed or forgotten."""

    def pins() -> int:
        return asyncio.run(_pins(local.zk))

    before = pins()
    db.sql("select 1")
    db.read(table)
    stream = db.scan(table).to_batches()
    assert pins() == before + 1
    stream.close()
    stream.close()
    assert list(db.scan(table).to_batches())
    with pytest.raises(UnknownTableError):
        db.scan("nowhere").to_batches()
    assert pins() == before
    forgotten = db.scan(table).to_batches()
    del forgotten
    gc.collect()
    eventually(lambda: pins() == before, what="the end of the forgotten pin")


async def _pins(connect: str) -> int:
    """Return the number of snapshots that are pinned, by any replica."""
    store = ZkStore(connect, session_timeout_s=10.0, request_timeout_s=30.0, multi_bytes_max=1 << 19)
    await store.open()
    try:
        found = await store.children(tree.PINS)
        assert isinstance(found, Ok)
        return len(found.value)
    finally:
        await store.close()
