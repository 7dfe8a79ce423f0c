"""A read of a file at a CSN that its replica lacks is sent elsewhere soon, whatever others wait for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.lab import Gates
from tests.support.faults.refusals import Answer, http
from tests.support.waiting import eventually
from tidelock.cluster import LocalCluster
from workloads.agents import ask

APPLY = "replication.apply.before"
ROWS = pa.table({"n": [1, 2, 3]})


def listing(local: LocalCluster, replica: str, csn: int) -> Answer:
    """Ask the snapshot file system of a replica for the parts of the table."""
    rows = ask(local, replica, "/status")["replicas"]
    [address] = [row["data"] for row in rows if row["id"] == replica]
    return http("GET", f"http://{address}/webhdfs/v1/snapshots/{csn}/default/t?op=LISTSTATUS")


@pytest.mark.scenario("S67")
def test_a_read_of_a_replica_that_lags_has_an_own_short_bound(
    cluster: ClusterFactory, tmp_path: Path
) -> None:
    """It ends with "standby" although other requests would wait for ten minutes; later it is served."""
    gates = Gates(tmp_path / "gates", {"r3": {APPLY: "pause"}})
    local = cluster(
        settings={**QUICK, "wait_bound_s": 600, "read_wait_s": 0.3},
        environment_of={"r3": gates.environment("r3")},
    )
    with local.connect("r1") as db:
        db.create_table("t", ROWS.schema)
        db.insert("t", ROWS, wait="all")
        with gates.open("r3", APPLY):
            csn = db.insert("t", ROWS).csn
            assert csn is not None
            refused = listing(local, "r3", csn)
            assert refused.json["RemoteException"]["exception"] == "StandbyException"
            assert "within 0.3 s" in refused.json["RemoteException"]["message"]
            assert listing(local, "r1", csn).status == 200
    eventually(lambda: listing(local, "r3", csn).status == 200, what="r3 serves the CSN")
