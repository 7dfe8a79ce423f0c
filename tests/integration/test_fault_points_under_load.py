"""SIGKILL at fault points while clients of all replicas commit: several transactions are under way each time.

test_fault_points.py checks for each point the one transaction that passes it. Here packs, pushes and records
carry transactions of many clients, and the history of all of them is checked (I1 to I11, I17).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.clusters.cluster import ClusterFactory
from tests.support.faults.lab import SETTINGS, Gates
from tests.support.histories.evidence import verify
from tests.support.histories.workload import Workload
from tests.support.waiting import eventually

REPLICAS: Final = ("r1", "r2", "r3")
#: The replicas that die, in this order, each with its point; the load reaches the n-th pass within a second.
DEATHS: Final = (
    ("r1", "csnlog.commit.after", "crash@4"),
    ("r2", "replication.accept.after", "crash@7"),
    ("r3", "agent.catalog.after", "crash@20"),
    ("r1", "replication.push.after", "crash@9"),
    ("r2", "partfs.fsync.after", "crash@6"),
    ("r3", "replication.apply.before", "crash@10"),
    ("r1", "agent.seal.after", "crash@3"),
)


@pytest.mark.slow
def test_deaths_at_points_under_load(cluster: ClusterFactory, tmp_path: Path) -> None:
    """After each death the other two replicas commit on, and the killed one comes back under load."""
    faults: dict[str, dict[str, str]] = {replica: {} for replica in REPLICAS}
    for replica, point, fault in DEATHS:
        faults[replica][point] = fault
    gates = Gates(tmp_path / "gates", faults)
    local = cluster(
        settings=SETTINGS,
        environment_of={replica: gates.environment(replica) for replica in REPLICAS},
    )
    with Workload(local, tmp_path, "deaths", writers=(*REPLICAS, *REPLICAS, None)) as load:
        for replica, point, _ in DEATHS:
            load.more_commits(3, *REPLICAS)
            with gates.open(replica, point):
                eventually(lambda victim=replica: local.pid(victim) is None, what=f"{replica} at {point}")  # type: ignore[misc]
            load.more_commits(3, *(home for home in REPLICAS if home != replica))
            local.start(replica)
        load.more_commits(3, *REPLICAS)
    verify(load, commits=3 * len(REPLICAS) * len(DEATHS))
