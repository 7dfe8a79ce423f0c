"""A cluster whose owner is about to be killed: `python -m tests.support.clusters.abandoned FOLDER`.

It prints the pids of the nodes, and then waits for its own death.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tidelock.testing import Cluster
from workloads import child


def _main(folder: str) -> None:
    with Cluster.processes(Path(folder), replicas=1, copies=1, isolated=True, disk_bytes=64 << 20) as cluster:
        child.answer([cluster.node(name).pid for name in ("z1", "r1")])
        next(child.requests(), None)


if __name__ == "__main__":
    _main(*sys.argv[1:])
