"""Epochs of 50 records: the log rolls over again and again while clients of all replicas commit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import verify
from tests.support.histories.workload import Workload
from tests.support.waiting import eventually
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core.ids import Csn, epoch_of
from workloads.agents import ask

REPLICAS = ("r1", "r2", "r3")
EPOCH_LIMIT = 50


def epoch(local: LocalCluster, replica: str) -> int:
    """The epoch that a replica has reached."""
    return epoch_of(Csn(ask(local, replica, "/status")["snapshot_csn"]))


@pytest.mark.slow
def test_the_log_rolls_over_under_load(cluster: ClusterFactory, tmp_path: Path) -> None:
    """Every epoch ends at its limit; a replica that was away for several of them catches up."""
    local = cluster(epoch_limit=EPOCH_LIMIT, settings=QUICK)
    with Workload(local, tmp_path, "roll", writers=(*REPLICAS, *REPLICAS, None), readers=REPLICAS) as load:
        eventually(lambda: epoch(local, "r3") >= 1, what="the first roll-over")
        local.kill("r3")
        begun = epoch(local, "r1")
        eventually(lambda: epoch(local, "r1") >= begun + 2, what="two more epochs without r3")
        local.start("r3")
        load.more_commits(5, *REPLICAS)
        load.more_reads(1, *REPLICAS)
    history = verify(load, commits=3 * EPOCH_LIMIT)
    records = Counter(epoch_of(Csn(line.csn)) for line in history.log)
    records[0] += 1  # CSN 0, which is no record to be read
    last = max(records)
    assert last >= 4
    assert set(records) == set(range(last + 1))
    # The END record takes a number too; records that were sent before the limit was reached precede it.
    assert all(EPOCH_LIMIT <= records[number] <= EPOCH_LIMIT + 8 for number in range(last)), records
