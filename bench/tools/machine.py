"""The machine on which figures depend, and its load meanwhile: processors, CPU time, memory, disk."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from tidelock.cluster import LocalCluster
from tidelock.processes import Identity


def facts() -> dict[str, Any]:
    """Return what figures depend on: processors, memory, kernel, Python, version, and the load before."""
    return {
        "processors": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "git": _git_describe(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load_before": [round(value, 2) for value in os.getloadavg()],
    }


def _git_describe() -> str:
    command = ["git", "describe", "--always", "--dirty", "--tags"]
    try:
        figures = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"  # an archive without its history
    return figures.stdout.strip()


def processes(cluster: LocalCluster, replica: str) -> Iterator[psutil.Process]:
    """Yield the processes of an agent: the protocol process first, then its reader and SQL workers.

    RuntimeError when the agent does not run.
    """
    pid = cluster.pid(replica)
    if pid is None:
        raise RuntimeError(f"agent {replica} does not run; its log is {cluster.log(replica)}")
    agent = psutil.Process(pid)
    yield agent
    yield from agent.children(recursive=True)


def cpu_s(cluster: LocalCluster, *, without: str = "") -> float:
    """Return the CPU seconds that all agents have used so far, their reader and SQL processes included."""
    used = (
        process.cpu_times()
        for replica in cluster.replicas
        if replica != without
        for process in processes(cluster, replica)
    )
    return float(sum(times.user + times.system for times in used))


def spark_cpu_s(spark: SparkSession) -> float:
    """Return the CPU seconds that a classic session has used so far: its JVM, and its Python workers."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - there is no public way to its process
    leader = psutil.Process(jvm.java.lang.ProcessHandle.current().pid())
    used = [process.cpu_times() for process in (leader, *leader.children(recursive=True))]
    return float(sum(item.user + item.system + item.children_user + item.children_system for item in used))


def memory_mb(cluster: LocalCluster) -> dict[str, dict[str, float]]:
    """Return the memory of each agent in MB.

    `protocol` is the resident memory of the process that owns ZooKeeper and the catalog, `peak` its highest
    ever; `whole` is the proportional share (PSS) of the agent with all its workers.
    """
    figures: dict[str, dict[str, float]] = {}
    for replica in cluster.replicas:
        agent, *workers = processes(cluster, replica)
        figures[replica] = {
            "protocol": round(agent.memory_info().rss / 1e6, 1),
            "peak": round(_peak_bytes(agent.pid) / 1e6, 1),
            "whole": round(sum(item.memory_full_info().pss for item in (agent, *workers)) / 1e6, 1),
        }
    return figures


def forget_peaks(cluster: LocalCluster) -> dict[str, float]:
    """Reset the memory peaks of the protocol processes; return their current resident memory, in MB."""
    figures = {}
    for replica in cluster.replicas:
        agent = next(processes(cluster, replica))
        Path(f"/proc/{agent.pid}/clear_refs").write_text("5", encoding="ascii")  # proc(5): resets VmHWM
        figures[replica] = round(agent.memory_info().rss / 1e6, 1)
    return figures


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not show the peak memory of a process")


def zookeeper_writes(cluster: LocalCluster) -> int:
    """Return how many transactions the ZooKeeper server has logged: the low half of its last zxid."""
    return int(zookeeper_figure(cluster, "srvr", "Zxid:"), 16) & 0xFFFFFFFF


def zookeeper_cpu_s(cluster: LocalCluster) -> float:
    """Return the CPU seconds that the ZooKeeper server has used so far."""
    times = psutil.Process(zookeeper_process(cluster).pid).cpu_times()
    return float(times.user + times.system)


def zookeeper_process(cluster: LocalCluster) -> Identity:
    """Return the process of the ZooKeeper server."""
    assert cluster.zookeeper is not None, "the bench runs its own ZooKeeper"
    process = cluster.zookeeper.servers[0].process
    assert process is not None, "the cluster is up"
    return process


def zookeeper_figure(cluster: LocalCluster, command: str, name: str) -> str:
    """Return the word after a name in the answer to a four-letter command; RuntimeError without it."""
    assert cluster.zookeeper is not None, "the bench runs its own ZooKeeper"
    words = (cluster.zookeeper.servers[0].ask(command) or "").split()
    if name not in words[:-1]:
        raise RuntimeError(f"the ZooKeeper server does not show {name} in {command}")
    return words[words.index(name) + 1]
