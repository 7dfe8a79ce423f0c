"""The programs of a Spark cluster as processes: a standalone master and workers, from the PySpark wheel."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelock import java
from tidelock.errors import ConfigError
from tidelock.ports import HOST, free_ports
from tidelock.testing.spark_master import MASTER

__all__ = ["MASTER", "Plan", "loopback_hosts", "plan"]

_DEPLOY: Final = "org.apache.spark.deploy"


@dataclass(frozen=True, slots=True)
class Plan:
    """The programs that are to be started.

    Attributes:
        master: The address for sessions.
        page: Address of the master's page.
        commands: The program of each node; that of the master is the first one.
        environment: The variables of all of them.
    """

    master: str
    page: str
    commands: Mapping[str, list[str]]
    environment: Mapping[str, str]


def loopback_hosts(workers: Iterable[str]) -> dict[str, str]:
    """Return addresses of nodes without namespaces.

    Each worker has another one on the loopback interface: Spark runs the second copy of a slow task only on
    another host.
    """
    return {MASTER: HOST, **{worker: f"127.0.0.{number}" for number, worker in enumerate(workers, 2)}}


def plan(folder: Path, hosts: Mapping[str, str]) -> Plan:
    """Return what is to be started; ConfigError if PySpark or Java is missing.

    Args:
        folder: Files of the nodes.
        hosts: The address of each node, the master's first.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "spark_workers needs the PySpark wheel, which is not installed; "
            "install the extra 'tidelock[spark]'"
        )
    folder.mkdir(parents=True, exist_ok=True)
    script = str(Path(spec.origin).parent / "bin" / "spark-class")
    ports = iter(free_ports(2 * len(hosts)))
    commands, master, page = {}, "", ""
    for name, host in hosts.items():
        port, page_port = next(ports), next(ports)
        address = ("--host", host, "--port", str(port), "--webui-port", str(page_port))
        if name == MASTER:
            master, page = f"spark://{host}:{port}", f"http://{host}:{page_port}"
            commands[name] = [script, f"{_DEPLOY}.master.Master", *address]
        else:
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / name / "work"))
            commands[name] = [script, f"{_DEPLOY}.worker.Worker", *address, *size, master]
    environment = {
        **os.environ,
        "JAVA_HOME": str(java.home_for_spark(java.find(), folder)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    return Plan(master, page, commands, environment)
