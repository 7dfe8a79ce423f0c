"""Spark of `tidelock.testing.Cluster`: jobs run on its workers, which end and come back."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from chaos.spark.driver import Driver
from demo.containers import images
from tests.support.faults import ability
from tests.support.waiting import eventually
from tidelock.testing import Cluster, commands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

TIMEOUT_S: Final = 180.0
ROWS: Final = 100


def _made(kind: str, folder: Path) -> Cluster:
    if kind == "processes":
        ability.require(commands.lack())
        return Cluster.processes(folder, replicas=2, spark_workers=2, isolated=True)
    return Cluster.containers(
        folder,
        replicas=2,
        spark_workers=2,
        agent_image=images.build("agent", "test"),
        zookeeper_image=images.zookeeper("test"),
        spark_image=images.build("spark", "test"),
    )


@pytest.mark.parametrize("kind", ["processes", pytest.param("containers", marks=pytest.mark.docker)])
def test_jobs_run_on_the_workers_and_outlive_each(kind: str, tmp_path: Path) -> None:
    """A session on the host reads by the workers, also when one of them is killed."""
    with closing(_made(kind, tmp_path / "cluster")) as cluster:
        cluster.start(timeout_s=TIMEOUT_S)
        with cluster.connect() as db:
            db.create_table("events", pa.schema([("n", pa.int64())]))
            written = db.write({"events": pa.table({"n": range(ROWS)})})
        master = cluster.spark_master
        with closing(Driver(1, tmp_path / "driver", master=master, host=cluster.driver_host)) as spark:
            spark.call("join", urls=cluster.urls, token=cluster.secret)
            for killed in (None, "w1", "w2"):
                if killed is not None:
                    cluster.node(killed).kill()
                found = spark.call(
                    "rows",
                    queries={"events": "select count(*), sum(n) from events"},
                    tables=["events"],
                    pinned=False,
                    failover=True,
                )
                assert found["csn"] >= written.csn
                assert found["rows"]["events"] == [[ROWS, sum(range(ROWS))]]
                if killed is not None:
                    node = cluster.node(killed)
                    node.start(timeout_s=TIMEOUT_S)
                    eventually(partial(getattr, node, "ready"), what=f"{killed} at the master")
