"""The loss of a replica's disk, and the order to start on an empty one."""

from __future__ import annotations

from tidelock.cluster import LocalCluster
from tidelock.testing.node import empty


def lose_disk(cluster: LocalCluster, replica: str) -> None:
    """Kill an agent, empty its data directory (maybe the root of a disk), and order to go on with that."""
    cluster.kill(replica)
    empty(cluster.data_dir(replica))
    replace_disk(cluster, replica)


def replace_disk(cluster: LocalCluster, replica: str) -> None:
    """Order that the next starts of a replica take its id over from a former data directory."""
    cluster.environment_of.setdefault(replica, {})["TIDELOCK_REPLACE_DISK"] = "true"
