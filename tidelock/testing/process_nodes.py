"""Nodes that are processes of this machine."""

from __future__ import annotations

import signal
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tidelock import java, processes
from tidelock.cluster import LocalCluster, process_groups
from tidelock.cluster_layout import ClusterLayout, pid_file
from tidelock.processes import Identity
from tidelock.testing import spark_master
from tidelock.testing.clock import PROGRAM, Clock
from tidelock.testing.disks import Disk
from tidelock.testing.node import READY_TIMEOUT_S, Node, text_of
from tidelock.zookeeper import LocalZooKeeper, ZooKeeperServer

#: Time that a process may take to end after SIGTERM, in seconds.
_STOP_GRACE_S: Final = 20.0


class ProcessNode(Node):
    """A node whose processes are one group, that of the process in its pid file."""

    @property
    @abstractmethod
    def identity(self) -> Identity | None:
        """The process of the last start, running or not; None before the first start."""

    @property
    def pid(self) -> int | None:
        """The leader of the group, while it runs."""
        found = self.identity
        return found.pid if found is not None and processes.alive(found) else None

    def kill(self) -> None:
        """SIGKILL to the group."""
        if found := self.identity:
            process_groups.kill(found)

    def stop(self) -> None:
        """SIGTERM to the leader, and SIGKILL to the group if that takes too long."""
        if found := self.identity:
            process_groups.stop(found, grace_s=_STOP_GRACE_S)

    def pause(self) -> None:
        """SIGSTOP to the group."""
        if found := self.identity:
            process_groups.send(found, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to the group."""
        if found := self.identity:
            process_groups.send(found, signal.SIGCONT)


class Agents(LocalCluster):
    """The agents of a cluster: each with a clock that a test sets, and maybe in a namespace of its own.

    Attributes:
        prefix_of: The words before the command of each replica that is in a namespace.
    """

    def __init__(self, folder: Path, layout: ClusterLayout, *, environment: Mapping[str, str]) -> None:
        super().__init__(folder, layout, environment=environment)
        self.prefix_of: dict[str, Sequence[str]] = {}

    def _launch(self, replica: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        python, option, _, *flags = command
        prefix = self.prefix_of.get(replica, ())
        super()._launch(replica, [*prefix, python, option, PROGRAM, *flags], environment)


class ReplicaProcess(ProcessNode):
    """An agent.

    Args:
        agents: The agents of the cluster, with this one.
        name: Its id.
        address: See `Node`.
        disk: See `Node`.
        clock: See `Node`.
    """

    def __init__(self, agents: Agents, name: str, address: str, disk: Disk | None, clock: Clock) -> None:
        super().__init__(name, address, agents.data_dir(name), disk=disk, clock=clock)
        self._agents = agents
        self._pid_file = pid_file(agents.folder, name)

    @property
    def identity(self) -> Identity | None:
        """The process in its pid file."""
        return processes.load(self._pid_file)

    def log(self) -> str:
        """The text of its log file."""
        return text_of(self._agents.log(self.name))

    def start(self, *, timeout_s: float = READY_TIMEOUT_S, wait: bool = True) -> None:
        """Start the agent; `Node.start` says more."""
        self._agents.start(self.name, timeout_s=timeout_s, wait=wait)

    def _order_takeover(self) -> None:
        self._agents.environment_of.setdefault(self.name, {})["TIDELOCK_REPLACE_DISK"] = "true"

    def ready(self) -> bool:
        """Return whether the agent says so."""
        return self._agents.ready(self.name)


class ZooKeeperProcess(ProcessNode):
    """A server of ZooKeeper.

    Args:
        name: E.g. "z1".
        ensemble: All servers.
        server: This one.
    """

    def __init__(self, name: str, ensemble: LocalZooKeeper, server: ZooKeeperServer) -> None:
        super().__init__(name, server.host, server.folder / "data")
        self._ensemble = ensemble
        self._server = server

    @property
    def identity(self) -> Identity | None:
        """The process in its pid file."""
        return self._server.process

    def log(self) -> str:
        """The text of its log file."""
        return text_of(self._server.folder / "zookeeper.log", self._server.folder / "zookeeper.out")

    def start(self, *, timeout_s: float = READY_TIMEOUT_S, wait: bool = True) -> None:
        """Start the server; `Node.start` says more. It serves when a quorum runs."""
        self._server.start(java.find())
        if wait:
            self._ensemble.wait_ready(timeout_s=timeout_s, servers=[self._server])

    def ready(self) -> bool:
        """Return whether the server serves clients."""
        return self._server.mode() is not None


class SparkProcess(ProcessNode):
    """A master or a worker of Spark.

    Args:
        name: "master", or e.g. "w1".
        address: See `Node`.
        folder: Its logs and files.
        command: Its program.
        environment: All variables of it.
        page: Address of the master's page.
    """

    def __init__(
        self,
        name: str,
        address: str,
        folder: Path,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
        page: str,
    ) -> None:
        super().__init__(name, address, folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._command = command
        self._environment = environment
        self._page = page
        self._pid_file, self._log = folder / "spark.pid", folder / "spark.log"

    @property
    def identity(self) -> Identity | None:
        """The process in its pid file."""
        return processes.load(self._pid_file)

    def log(self) -> str:
        """The text of its log file."""
        return text_of(self._log)

    def start(self, *, timeout_s: float = READY_TIMEOUT_S, wait: bool = True) -> None:
        """Start the program; `Node.start` says more."""
        if not self.running:
            processes.start(
                self._command,
                pid_file=self._pid_file,
                log=self._log,
                folder=self.data_dir,
                env=self._environment,
            )
        if wait:
            self.wait_ready(timeout_s)

    def ready(self) -> bool:
        """Return whether the master answers, or knows this worker."""
        return self.running and spark_master.knows(self._page, self.name, self.address)
