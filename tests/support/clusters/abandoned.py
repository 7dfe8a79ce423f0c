"""A cluster whose owner is about to be killed.

    python -m tests.support.clusters.abandoned FOLDER [AGENT_IMAGE ZOOKEEPER_IMAGE]

With images it is of containers, otherwise of processes. It prints the pids of the nodes, and then waits for
its own death.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tidelock.testing import Cluster
from workloads import child

_DISK_BYTES: Final = 64 << 20


def _cluster(folder: Path, images: list[str]) -> Cluster:
    if not images:
        return Cluster.processes(folder, replicas=1, copies=1, isolated=True, disk_bytes=_DISK_BYTES)
    agent, zookeeper = images
    return Cluster.containers(
        folder, replicas=1, copies=1, disk_bytes=_DISK_BYTES, agent_image=agent, zookeeper_image=zookeeper
    )


def _main(folder: str, *images: str) -> None:
    with _cluster(Path(folder), [*images]) as cluster:
        child.answer([cluster.node(name).pid for name in ("z1", "r1")])
        next(child.requests(), None)


if __name__ == "__main__":
    _main(*sys.argv[1:])
