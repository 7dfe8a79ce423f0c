"""A replica without a usable catalog gets a peer's catalog and fetches the parts (rule clone, F8)."""

from __future__ import annotations

import shutil
import sqlite3
from typing import Final

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import horizons, nothing_left, require_clean_audit
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster

SCHEMA: Final = pa.schema([pa.field("n", pa.int64(), nullable=False)])
#: Agents that collect at once what the horizon has passed.
COLLECTING: Final = QUICK | {"horizon_interval_s": 0.2, "log_keep_records": 1, "reader_workers": 1}


def rows(begin: int, count: int = 10) -> pa.Table:
    """Return rows with the numbers from `begin` on."""
    return pa.table({"n": range(begin, begin + count)}, SCHEMA)


def numbers(local: LocalCluster, replica: str) -> list[int]:
    """Return the numbers in the table `t`, as one replica shows them."""
    with local.connect(replica) as db:
        return sorted(db.read("t").column("n").to_pylist())


def lose_disk(local: LocalCluster, replica: str) -> None:
    """Kill an agent and empty its data directory."""
    local.kill(replica)
    shutil.rmtree(local.data_dir(replica))


def with_collected_history(db: Database, local: LocalCluster) -> None:
    """Fill a table, replace its rows, and give up the history of that: 10 rows from 100 on are left."""
    db.create_table("t", SCHEMA)
    db.insert("t", rows(0))
    db.truncate("t")
    db.insert("t", rows(100))

    def collected() -> bool:
        db.raise_horizon()
        return not removed(local, "r1")

    eventually(collected, what="the removed parts are deleted")


def removed(local: LocalCluster, replica: str) -> int:
    """Return how many removed parts a replica keeps."""
    with sqlite3.connect(f"file:{local.data_dir(replica) / 'catalog.db'}?mode=ro", uri=True) as db:
        return int(db.execute("SELECT count(*) FROM parts WHERE removal_csn IS NOT NULL").fetchone()[0])


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_lost_disk_comes_back_although_history_was_collected(
    cluster: ClusterFactory, replicas: int
) -> None:
    """The parts that the log adds and removes again are nowhere any more; the replica serves without them."""
    local = cluster(replicas=replicas, copies=2, settings=COLLECTING)
    with local.connect("r1") as db:
        with_collected_history(db, local)
        lose_disk(local, "r2")
        local.start("r2")
        assert numbers(local, "r2") == list(range(100, 110))
        db.insert("t", rows(200))
    with local.connect("r2") as db:
        db.truncate("t")
        db.insert("t", rows(300))
    assert numbers(local, "r1") == list(range(300, 310))
    before = min(horizons(local))
    with local.connect("r1") as db:
        eventually(lambda: db.raise_horizon()["horizon"] > before, what="the horizon moves again")
    require_clean_audit(local)
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
