"""Spark reads a snapshot slowly while its parts are merged and others collected, and an executor dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import ClusterFactory
from tests.support.spark.lab import HOME, SparkLab, spark_laboratory
from tests.support.spark.proof import create
from tests.support.spark.rows import rows
from tests.support.spark.troubled_tasks import HOLD
from tests.support.waiting import eventually
from tidelock.errors import SnapshotTooOldError
from workloads.agents import ask

# A session may take minutes to start on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

TABLE: Final = "t"
#: Parts of the table, and the rows of each.
PARTS: Final = 8
ROWS: Final = 200
#: History is short, and parts are merged and collected as soon as that may be.
SETTINGS: Final[dict[str, Any]] = {
    "compaction": True,
    "compaction_interval_s": 0.5,
    "compaction_parts_min": 2,
    "history_retention_s": 1,
    "horizon_interval_s": 0.5,
    "unpinned_ttl_s": 1,
}


@pytest.fixture(params=[False, True], ids=["local-cluster", "standalone"])
def lab(request: pytest.FixtureRequest, cluster: ClusterFactory, tmp_path: Path) -> Iterator[SparkLab]:
    """Two executors, and three replicas that merge and collect."""
    with spark_laboratory(cluster, tmp_path, standalone=request.param, settings=SETTINGS) as lab:
        yield lab


def collected(lab: SparkLab) -> int:
    """Return how many parts the home has collected, by its log."""
    lines = lab.cluster.log(HOME).read_text(encoding="utf-8").splitlines()
    return sum(json.loads(line)["parts"] for line in lines if '"event": "collected"' in line)


def parts(lab: SparkLab) -> int:
    """Return the number of parts of the table at the newest CSN."""
    sql = f"select count(*) as parts from system.parts where table_name = '{TABLE}'"
    with lab.cluster.connect(HOME) as db:
        [row] = db.sql(sql).to_pylist()
    return int(row["parts"])


@pytest.mark.scenario("S65")
def test_a_snapshot_whose_parts_are_merged_is_read_whole(lab: SparkLab) -> None:
    """An executor is killed in the middle: the rows are those of the snapshot, now and in a second read.

    Nothing but the pin of the read keeps the parts: when it is gone, they are collected.
    """
    ids = range(PARTS * ROWS)
    with lab.cluster.connect(HOME) as db:
        create(db, TABLE, partitioned=False)
        db.alter_table(TABLE, properties={"compaction": "off"})
        loads = [pa.Table.from_batches([rows(ids[first : first + ROWS])]) for first in ids[::ROWS]]
        csns = [db.insert(TABLE, load, wait="all").csn for load in loads]
    assert parts(lab) == PARTS
    marks = lab.folder / "marks"
    marks.mkdir()
    (marks / HOLD).touch()
    spark = lab.spark
    spark.call("join", url=[lab.cluster.url(replica) for replica in lab.cluster.replicas])
    attached = spark.call("attach", tables=[TABLE])
    assert attached["csn"] >= csns[-1]
    spark.send("read_troubled", table=TABLE, trouble={"marks": str(marks), "held": True})
    try:
        eventually(lambda: len(list(marks.glob("held-*"))) >= 2, what="two held tasks", timeout_s=100)
        merge_and_collect(lab, attached["csn"])
        lab.executors()[0].kill()
    finally:
        (marks / HOLD).unlink()
    found = spark.receive()
    assert [row[0] for row in found] == [*ids]
    assert len(list(marks.glob("held-*"))) > PARTS, "no task was run again"
    assert parts(lab) < PARTS
    assert spark.call("read_troubled", table=TABLE, trouble=None) == found
    spark.call("detach")
    require_collected(lab, attached["csn"])


def merge_and_collect(lab: SparkLab, csn: int) -> None:
    """Let the parts be merged, and history be collected up to the snapshot, which holds it there."""
    with lab.cluster.connect(HOME) as db:
        db.alter_table(TABLE, properties={"compaction": "on"})
    eventually(lambda: parts(lab) < PARTS, what="a merge")

    def held() -> bool:
        return {ask(lab.cluster, replica, "/status")["horizon"] for replica in lab.cluster.replicas} == {csn}

    eventually(held, what=f"horizons at {csn}")


def require_collected(lab: SparkLab, csn: int) -> None:
    """Wait until the snapshot is gone, and its parts with it."""
    with lab.cluster.connect(HOME) as db:

        def too_old() -> bool:
            try:
                with db.snapshot(csn):
                    return False
            except SnapshotTooOldError:
                return True

        eventually(too_old, what=f"the end of CSN {csn}")
    eventually(lambda: collected(lab) >= PARTS, what="a collection of the parts")
