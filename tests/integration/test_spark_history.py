"""A Spark job whose snapshot is given up while it runs fails and says so; it never returns fewer rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.lock_reading import part_rows
from tests.support.histories.evidence import data_address, nothing_left
from tests.support.spark.process import SparkJobError, SparkProcess
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.replica_agent.readers import counters

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA: Final = pa.schema([("id", pa.int64()), ("v", pa.int64())])
PARTS, ROWS = 60, 20_000
#: An expression that takes some tenths of a second for each part, so that a test can act during the job.
HEAVY: Final = "sum(aggregate(sequence(1, 300), 0L, (a, x) -> a + (x * id) % 7)), sum(v), count(*)"


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """A cluster that deletes removed parts at once."""
    return module_cluster(
        replicas=2,
        settings={**QUICK, "horizon_interval_s": 0.2, "clean_interval_s": 0.5},
    )


@pytest.fixture
def table(local: LocalCluster) -> str:
    """A table of many parts."""
    values = np.random.default_rng(1).integers(0, 1 << 40, (PARTS, ROWS))
    with local.connect("r1") as db:
        name = f"t{len(db.tables())}"
        db.create_table(name, SCHEMA, properties={"compaction": "off"})
        with db.begin() as tx:
            for number in range(PARTS):
                ids = range(number * ROWS, (number + 1) * ROWS)
                tx.insert(name, pa.table({"id": ids, "v": values[number]}, SCHEMA))
            tx.commit(wait="all")
    return name


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A session whose settings ignore missing and damaged files."""
    with SparkProcess("classic", tmp_path_factory.mktemp("spark")) as session:
        yield session


def opens(local: LocalCluster) -> int:
    """Return how many parts were opened on all replicas."""
    return sum(counters.read(Path(local.data_dir(replica)) / "run")["opens"] for replica in local.replicas)


def give_up(local: LocalCluster, db: Database, table: str, csn: int) -> None:
    """Remove all rows, end the pins, and wait until the parts are deleted everywhere."""
    db.truncate(table, wait="all")
    # Reads without a pin take a new implicit pin.
    eventually(lambda: db.raise_horizon(drop_pins=True)["horizon"] > csn, what="a horizon above the snapshot")
    for replica in local.replicas:
        eventually(partial(collected, local.data_dir(replica), table), what=f"parts deleted on {replica}")
        nothing_left(local.data_dir(replica))


def collected(data_dir: Path, table: str) -> bool:
    """Return whether a replica has deleted all parts of the table."""
    return not part_rows(data_dir, table)


@pytest.mark.parametrize("helpers", [True, False], ids=["helpers", "raw"])
def test_given_up_in_mid_job(local: LocalCluster, spark: SparkProcess, table: str, helpers: bool) -> None:
    """The job fails with the helpers' options, and with a bare path in a session that ignores lost files."""
    with local.connect("r1") as db:
        if helpers:
            spark.call("join", url=local.url("r1"))
            csn = spark.call("attach", tables=[table], replica="r1")["csn"]
            view = table
        else:
            csn, view = int(db.status()["snapshot_csn"]), f"raw_{table}"
            path = f"webhdfs://{data_address(local, 'r1')}/snapshots/{csn}/default/{table}"
            spark.call("raw_list", path=path, view=view)
        assert spark.sql(f"SELECT count(*) FROM {view}") == [[PARTS * ROWS]]
        before = opens(local)
        spark.send("sql", query=f"SELECT {HEAVY} FROM {view}")
        eventually(lambda: opens(local) >= before + 8, what="a job that reads")
        give_up(local, db, table, csn)
        with pytest.raises(SparkJobError, match=r"SnapshotTooOld") as failed:
            spark.receive()
        assert "below the horizon" in str(failed.value)
        with pytest.raises(SparkJobError, match="SnapshotTooOld"):
            spark.sql(f"SELECT count(v) FROM {view}")


def test_tables_of_a_time_are_attached(local: LocalCluster, spark: SparkProcess, table: str) -> None:
    """`attach(at=)` reads the tables as they were then, also after their rows were removed."""
    with local.connect("r1") as db:
        before = db.last_change(table)
        time = before.time
        assert time is not None
        eventually(lambda: db.time_of(db.truncate(table).csn or 0) > time, what="a later time")
        spark.call("join", url=local.url("r1"))
        at_ms = round(time.timestamp() * 1000)
        assert before.csn <= spark.call("attach", tables=[table], at=at_ms)["csn"]
        assert spark.sql(f"SELECT count(*) FROM {table}") == [[PARTS * ROWS]]
        with pytest.raises(SparkJobError, match="give one of them"):
            spark.call("attach", tables=[table], at=at_ms, csn=before.csn)
