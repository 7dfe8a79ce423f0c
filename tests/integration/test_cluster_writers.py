"""Concurrent writers on all replicas, readers that sample CSNs on all of them meanwhile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import verify
from tests.support.histories.workload import Workload
from workloads.history import CallEnd

REPLICAS = ("r1", "r2", "r3")


@pytest.mark.scenario("S71", "S72")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=pytest.mark.slow, id="few merges"),
        pytest.param({"compaction_interval_s": 0.5}, marks=pytest.mark.slow, id="merges all the time"),
    ],
)
def test_writers_and_readers_on_all_replicas(
    cluster: ClusterFactory, tmp_path: Path, settings: dict[str, float]
) -> None:
    """Commits, rollbacks and refusals through all replicas at once; every read at every CSN is sound."""
    local = cluster(settings=QUICK | settings)
    with Workload(
        local, tmp_path, "load", writers=(*REPLICAS, *REPLICAS, None), hoppers=2, readers=(*REPLICAS, None)
    ) as load:
        load.more_commits(40, *REPLICAS)
        load.more_reads(4, *REPLICAS)
    history = verify(load, commits=120)
    assert history.ended(CallEnd.INFO) == []
    assert {"rolled back", "SchemaMismatchError"} <= {
        write.error.partition("(")[0] for write in history.ended(CallEnd.FAIL)
    }
    assert all(count >= 4 for count in Counter(read.replica for read in history.reads).values())
