"""A cluster whose nodes are processes of this machine."""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from tidelock import secret_file, zookeeper
from tidelock.cluster_layout import ClusterLayout, ReplicaPorts
from tidelock.errors import UnavailableError
from tidelock.ports import HOST, free_ports
from tidelock.testing import commands, leftovers, spark_processes
from tidelock.testing.clock import VARIABLE as CLOCK_VARIABLE
from tidelock.testing.clock import Clock
from tidelock.testing.cluster import Cluster
from tidelock.testing.disks import Disk
from tidelock.testing.namespaces import Wiring
from tidelock.testing.network import Network
from tidelock.testing.node import READY_TIMEOUT_S, Node
from tidelock.testing.owners import VARIABLE, ClusterName
from tidelock.testing.process_nodes import Agents, ReplicaProcess, SparkProcess, ZooKeeperProcess

#: Short ticks: sessions down to one second, elections in less. The second compiler of Java would take half of
#: the processor time of a server that lives for a minute.
_ZOOKEEPER: Final = zookeeper.Options(tick_time_ms=500, jvm=("-XX:TieredStopAtLevel=1",))
_ROOT: Final = "tidelock"


class ProcessCluster(Cluster):
    """See `Cluster.processes`."""

    kind = "processes"

    def __init__(
        self,
        folder: Path,
        *,
        replicas: int,
        copies: int,
        zookeepers: int,
        spark_workers: int,
        settings: Mapping[str, Any],
        environment: Mapping[str, str],
        epoch_limit: int | None,
        isolated: bool,
        disk_bytes: int | None,
    ) -> None:
        if isolated:
            commands.require("isolated=True")
        if disk_bytes is not None:
            commands.require("disk_bytes")
        given = secret_file.of_environment({**os.environ, **environment})
        super().__init__(
            folder,
            replicas=replicas,
            copies=copies,
            zookeepers=zookeepers,
            spark_workers=spark_workers,
            settings=settings,
            environment=environment,
            # Agents ask for a secret where not only this machine's user can reach them.
            secret=given or (secrets.token_hex(16) if isolated else None),
        )
        if not given and self.secret:
            self._environment[secret_file.VARIABLE] = self.secret
        self._epoch_limit = epoch_limit
        self._isolated = isolated
        self._disk_bytes = disk_bytes
        self._name = ClusterName.fresh()
        self._marker = f"{VARIABLE}={self._name}"
        self._open = ExitStack()
        self._wiring: Wiring | None = None
        self._agents: Agents | None = None
        self._ensemble: zookeeper.LocalZooKeeper | None = None
        self._spark_master: str | None = None
        self.driver_host = HOST

    # -- names and addresses --------------------------------------------------------------------------------

    @property
    def replicas(self) -> list[str]:
        """The ids of the replicas, also before the start."""
        return [*self._founders] if self._agents is None else self._agents.replicas

    @property
    def spark_master(self) -> str | None:
        """The address of the master."""
        return self._spark_master

    def url(self, replica: str) -> str:
        """Return the address of a replica's API."""
        return self._started.url(replica)

    def data_address(self, replica: str) -> str:
        """Return the address of a replica's snapshot file system."""
        return self._started.data_address(replica)

    @property
    def zk(self) -> str:
        """The connect string."""
        return self._started.zk

    @property
    def _started(self) -> Agents:
        if self._agents is None:
            raise UnavailableError("the cluster was not started yet, so it has no addresses; call start()")
        return self._agents

    # -- members --------------------------------------------------------------------------------------------

    def add(self, replica: str) -> Node:
        """Register a fresh member and lay it out."""
        return self._enter(replica, lambda host: self._started.add_replica(replica, host=host))

    def replace_member(self, dead: str, fresh: str) -> Node:
        """Replace a dead member by a fresh one."""
        return self._enter(fresh, lambda host: self._started.replace_replica(dead, fresh, host=host))

    def forget(self, replica: str) -> None:
        """Take a replica that was removed out of the layout."""
        self._started.forget(replica)

    def _enter(self, replica: str, register: Callable[[str], None]) -> Node:
        address = self._wire(replica)
        try:
            register(address)
        except BaseException:
            if self._wiring is not None:
                self.network.detach(replica)
                self._wiring.remove(replica)
            raise
        return self._lay_out(replica, address)

    # -- begin and end --------------------------------------------------------------------------------------

    def start(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start all nodes."""
        if self._agents is not None:
            for node in self._nodes.values():
                node.start(timeout_s=timeout_s)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        leftovers.sweep()
        if self._isolated:
            self._wiring = Wiring(self._name)
            self._open.callback(self._wiring.close)
            self.driver_host = self._wiring.host
        self.network = Network(
            None if self._wiring is None else self._wiring.host,
            lack="make the cluster with isolated=True, as root",
        )
        self._start_zookeepers(timeout_s)
        self._start_agents(timeout_s)
        self._start_spark(timeout_s)

    def close(self) -> None:
        """Kill all processes, and remove namespaces and disks."""
        leftovers.kill_marked(self._marker)
        self._open.close()

    def _start_zookeepers(self, timeout_s: float) -> None:
        hosts = [self._wire(name) for name in self._servers]
        made = zookeeper.create(self.folder / "zookeeper", size=len(hosts), options=_ZOOKEEPER, hosts=hosts)
        self._ensemble = zookeeper.LocalZooKeeper(
            made.folder,
            tuple(
                dataclasses.replace(server, prefix=("env", self._marker, *self._inside(name)))
                for name, server in zip(self._servers, made.servers, strict=True)
            ),
        )
        for name, server in zip(self._servers, self._ensemble.servers, strict=True):
            self._nodes[name] = ZooKeeperProcess(name, self._ensemble, server)
            self._answering[name] = server
        self._ensemble.start(timeout_s=timeout_s)

    def _start_agents(self, timeout_s: float) -> None:
        assert self._ensemble is not None
        ports = free_ports(2 * len(self._founders))
        hosts = [self._wire(replica) for replica in self._founders]
        layout = ClusterLayout(
            replicas=tuple(
                ReplicaPorts(replica, ports[2 * number], ports[2 * number + 1], host=host)
                for number, (replica, host) in enumerate(zip(self._founders, hosts, strict=True))
            ),
            copies=self._copies,
            zk=f"{self._ensemble.connect_string}/{_ROOT}",
            epoch_limit=self._epoch_limit,
        )
        layout.save(self.folder)
        environment = {**self._environment, VARIABLE: str(self._name)}
        self._agents = Agents(self.folder, layout, environment=environment)
        for replica, host in zip(self._founders, hosts, strict=True):
            self._lay_out(replica, host)
        self._agents.up(timeout_s=timeout_s)

    def _start_spark(self, timeout_s: float) -> None:
        if not self._workers:
            return
        deadline = time.monotonic() + timeout_s
        wired = {name: self._wire(name) for name in (spark_processes.MASTER, *self._workers)}
        hosts = wired if self._isolated else spark_processes.loopback_hosts(self._workers)
        plan = spark_processes.plan(self.folder / "spark", hosts)
        self._spark_master = plan.master
        environment = {**plan.environment, VARIABLE: str(self._name)}
        for name, host in hosts.items():
            self._nodes[name] = node = SparkProcess(
                name,
                host,
                self.folder / "spark" / name,
                command=[*self._inside(name), *plan.commands[name]],
                environment={**environment, "SPARK_LOCAL_IP": host},
                page=plan.page,
            )
            node.start(timeout_s=deadline - time.monotonic())

    # -- parts of nodes -------------------------------------------------------------------------------------

    def _wire(self, name: str) -> str:
        """Return the address of a node, in a namespace of its own if the cluster is isolated."""
        if self._wiring is None:
            return HOST
        address = self._wiring.add(name)
        self.network.attach(name, address, self._wiring.path(name))
        return address

    def _inside(self, name: str) -> tuple[str, ...]:
        """Return the words before a command that is to run in the namespace of a node."""
        return () if self._wiring is None else ("nsenter", f"--net={self._wiring.path(name)}")

    def _lay_out(self, replica: str, address: str) -> ReplicaProcess:
        """Make disk, clock and node of a replica."""
        agents = self._started
        disk = None
        if self._disk_bytes is not None:
            disk = Disk(agents.data_dir(replica), self._disk_bytes, source=self._name.of(replica))
            disk.mount()
            self._open.callback(disk.unmount)
        folder = self.folder / replica
        folder.mkdir(exist_ok=True)
        clock = Clock(folder / "clock")
        agents.environment_of.setdefault(replica, {})[CLOCK_VARIABLE] = str(clock.file)
        agents.prefix_of[replica] = self._inside(replica)
        self._nodes[replica] = node = ReplicaProcess(agents, replica, address, disk, clock)
        return node
