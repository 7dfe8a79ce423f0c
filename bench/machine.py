"""What the machine does meanwhile: CPU time of process groups, load, writes of a ZooKeeper server."""

from __future__ import annotations

import os
import platform
from typing import Any

import psutil

from tidelock.cluster import LocalCluster


def facts() -> dict[str, Any]:
    """Return what figures depend on: processors, memory, kernel, Python, and the load before the run."""
    return {
        "processors": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": [round(value, 2) for value in os.getloadavg()],
    }


def cpu_s(cluster: LocalCluster) -> float:
    """Return the CPU seconds that all agents have used so far, their reader and SQL processes included."""
    total = 0.0
    for replica in cluster.replicas:
        pid = cluster.pid(replica)
        if pid is None:
            raise RuntimeError(f"agent {replica} does not run; its log is {cluster.log(replica)}")
        agent = psutil.Process(pid)
        for process in (agent, *agent.children(recursive=True)):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def resident_mb(cluster: LocalCluster) -> dict[str, float]:
    """Return the resident memory of each agent's protocol process, in MB."""
    return {
        replica: round(psutil.Process(cluster.pid(replica) or 0).memory_info().rss / 1e6, 1)
        for replica in cluster.replicas
    }


def zookeeper_writes(cluster: LocalCluster) -> int:
    """Return the number of transactions that the ZooKeeper server has logged.

    The low half of its last zxid.
    """
    assert cluster.zookeeper is not None, "the bench runs its own ZooKeeper"
    for line in cluster.zookeeper.servers[0].ask("srvr").splitlines():
        if line.startswith("Zxid:"):
            return int(line.split()[1], 16) & 0xFFFFFFFF
    raise RuntimeError("the ZooKeeper server does not show its zxid")
