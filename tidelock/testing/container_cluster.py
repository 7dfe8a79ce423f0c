"""A cluster whose nodes are containers of the engine on this machine."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from tidelock import secret_file
from tidelock.errors import BadRequestError, ConfigError, UnavailableError
from tidelock.testing import commands, labelled, leftovers, services
from tidelock.testing.clock import VARIABLE as CLOCK_VARIABLE
from tidelock.testing.clock import Clock
from tidelock.testing.cluster import Cluster
from tidelock.testing.container_nodes import ReplicaContainer, SparkContainer, ZooKeeperContainer
from tidelock.testing.disks import Disk
from tidelock.testing.network import Network
from tidelock.testing.node import READY_TIMEOUT_S, Node
from tidelock.testing.owners import LABEL, ClusterName
from tidelock.testing.spark_master import MASTER

#: Label with the name of the cluster, beside that of its owner.
_CLUSTER_LABEL: Final = "tidelock.cluster"
_ROOT: Final = "tidelock"


def engine_client() -> Any:
    """Return a client of the engine (docker.DockerClient); ConfigError if there is none."""
    try:
        from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(
            "expected the package testcontainers for clusters of containers, found none; "
            "install the extra 'tidelock[testing]'"
        ) from error
    try:
        client = DockerClient().client
        client.ping()
    except Exception as error:
        raise ConfigError(
            f"expected a container engine that answers, found: {error}; start one, or name it in DOCKER_HOST"
        ) from error
    return client


class ContainerCluster(Cluster):
    """See `Cluster.containers`."""

    kind = "containers"

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
        disk_bytes: int | None,
        images: Mapping[str, str],
    ) -> None:
        commands.require("Cluster.containers")
        given = secret_file.of_environment({**os.environ, **environment})
        super().__init__(
            folder,
            replicas=replicas,
            copies=copies,
            zookeepers=zookeepers,
            spark_workers=spark_workers,
            settings=settings,
            environment=environment,
            secret=given or secrets.token_hex(16),
        )
        # A file of this machine does not exist in a container.
        self._environment.pop(secret_file.FILE_VARIABLE, None)
        self._environment[secret_file.VARIABLE] = str(self.secret)
        self._epoch_limit = epoch_limit
        self._disk_bytes = disk_bytes
        self._images = images
        self._name = ClusterName.fresh()
        self._labels = {LABEL: self._name.owner, _CLUSTER_LABEL: str(self._name)}
        self._members = [*self._founders]
        self._open = ExitStack()
        self._engine: Any = None
        self._net: Any = None
        self._zk = ""

    # -- names and addresses --------------------------------------------------------------------------------

    @property
    def replicas(self) -> list[str]:
        """The ids of the replicas, also before the start."""
        return [*self._members]

    @property
    def spark_master(self) -> str | None:
        """The address of the master."""
        return f"spark://{self.node(MASTER).address}:{services.MASTER_PORT}" if self._workers else None

    def url(self, replica: str) -> str:
        """Return the address of a replica's API."""
        return f"http://{self.node(replica).address}:{services.API_PORT}"

    def data_address(self, replica: str) -> str:
        """Return the address of a replica's snapshot file system."""
        return f"{self.node(replica).address}:{services.DATA_PORT}"

    @property
    def zk(self) -> str:
        """The connect string; UnavailableError before the start."""
        if not self._zk:
            raise UnavailableError("the cluster was not started yet, so it has no addresses; call start()")
        return self._zk

    # -- members --------------------------------------------------------------------------------------------

    def add(self, replica: str) -> Node:
        """Register a fresh member and lay it out."""
        self._require_unused(replica)
        with self.connect() as db:
            db.membership.add(replica)
        return self._enter(replica)

    def replace_member(self, dead: str, fresh: str) -> Node:
        """Replace a dead member by a fresh one."""
        self._require_unused(fresh)
        with self.connect() as db:
            db.membership.replace(dead, fresh)
        self.forget(dead)
        return self._enter(fresh)

    def forget(self, replica: str) -> None:
        """Take a replica that was removed out of the members."""
        if replica not in self._members:
            raise BadRequestError(
                f"there is no replica {replica!r}; the cluster has {', '.join(self._members)}"
            )
        self._members.remove(replica)

    def _require_unused(self, replica: str) -> None:
        if replica in self._nodes:
            raise ConfigError(f"the cluster has or had a node {replica}; choose another id")

    def _enter(self, replica: str) -> Node:
        node = self._lay_out(replica, *self._hold(replica))
        self._members.append(replica)
        return node

    # -- begin and end --------------------------------------------------------------------------------------

    def start(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start all nodes."""
        if self._engine is None:
            self._make()
        for group in (self._servers, self._members, [MASTER, *self._workers] if self._workers else []):
            for name in group:
                self.node(name).start(wait=False)
            for name in group:
                self.node(name).wait_ready(timeout_s)

    def close(self) -> None:
        """Remove all containers, networks, volumes and disks."""
        if self._engine is not None:
            labelled.remove(f"{_CLUSTER_LABEL}={self._name}")
        self._open.close()

    def _make(self) -> None:
        """Make all containers, none of which runs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._engine = self._open.enter_context(closing(engine_client()))
        leftovers.sweep()
        labelled.sweep()
        self._net = self._engine.networks.create(self._name.short, driver="bridge", labels=self._labels)
        self._net.reload()
        self.driver_host = str(self._net.attrs["IPAM"]["Config"][0]["Gateway"])
        self.network = Network(self.driver_host)
        servers = {name: self._hold(name) for name in self._servers}
        addresses = [address for address, _ in servers.values()]
        for number, (name, (address, held)) in enumerate(servers.items(), 1):
            volume = self._volume(name)
            self._nodes[name] = node = ZooKeeperContainer(
                self._engine,
                name,
                address,
                Path(volume.attrs["Mountpoint"]),
                options={
                    **services.ZOOKEEPER,
                    **self._common(name, held, "zookeeper"),
                    "environment": services.zookeeper_environment(addresses, number),
                    "volumes": {volume.name: {"bind": services.DATA}},
                },
            )
            self._answering[name] = node.server
        self._zk = ",".join(f"{address}:{services.ZOOKEEPER_PORT}" for address in addresses) + f"/{_ROOT}"
        for replica in self._founders:
            self._lay_out(replica, *self._hold(replica))
        if self._workers:
            self._lay_out_spark()

    def _lay_out(self, replica: str, address: str, held: str) -> ReplicaContainer:
        """Make disk, clock and container of a replica."""
        folder = self.folder / replica
        data, clock = folder / "data", folder / "clock"
        data.mkdir(parents=True, exist_ok=True)
        clock.mkdir(exist_ok=True)
        disk = None
        if self._disk_bytes is not None:
            source = self._name.of(replica)
            disk = Disk(data, self._disk_bytes, source=source, user=services.AGENT_USER)
            disk.mount()
            self._open.callback(disk.unmount)
        os.chown(data, services.AGENT_USER, services.AGENT_USER)
        who = services.agent_environment(
            replica,
            address,
            zk=self._zk,
            founders=self._founders,
            copies=self._copies,
            epoch_limit=self._epoch_limit,
        )
        self._nodes[replica] = node = ReplicaContainer(
            self._engine,
            replica,
            address,
            data,
            options={
                **services.AGENT,
                **self._common(replica, held, "agent"),
                "environment": {
                    **who,
                    **self._environment,
                    CLOCK_VARIABLE: f"{services.CLOCK_FOLDER}/clock",
                },
                "volumes": {
                    str(data): {"bind": services.DATA},
                    str(clock): {"bind": services.CLOCK_FOLDER, "mode": "ro"},
                },
            },
            disk=disk,
            clock=Clock(clock / "clock"),
        )
        return node

    def _lay_out_spark(self) -> None:
        held = {name: self._hold(name) for name in (MASTER, *self._workers)}
        master = f"spark://{held[MASTER][0]}:{services.MASTER_PORT}"
        for name, (address, holder) in held.items():
            volume = self._volume(name)
            self._nodes[name] = node = SparkContainer(
                self._engine,
                name,
                address,
                Path(volume.attrs["Mountpoint"]),
                options={
                    **services.SPARK,
                    **self._common(name, holder, "spark"),
                    "command": services.spark_command(name, address, master),
                    "mem_limit": services.SPARK_MEMORY[name == MASTER],
                    "environment": {**services.SPARK_FOLDERS, "SPARK_LOCAL_IP": address},
                    "volumes": {volume.name: {"bind": services.DATA}},
                },
            )
            node.page = f"http://{held[MASTER][0]}:{services.PAGE_PORT}"

    # -- parts of nodes -------------------------------------------------------------------------------------

    def _hold(self, name: str) -> tuple[str, str]:
        """Start the container that holds the namespace of a node; return the address, and the holder's id."""
        holder = self._engine.containers.run(
            self._images["agent"],
            detach=True,
            name=f"{self._name.short}-{name}-network",
            network=self._name.short,
            labels=self._labels,
            **services.HOLDER,
        )
        holder.reload()
        address = str(holder.attrs["NetworkSettings"]["Networks"][self._name.short]["IPAddress"])
        self.network.attach(name, address, Path(f"/proc/{holder.attrs['State']['Pid']}/ns/net"))
        return address, str(holder.id)

    def _common(self, name: str, holder: str, image: str) -> dict[str, Any]:
        """Return the options that all containers of nodes have."""
        return {
            "image": self._images[image],
            "name": f"{self._name.short}-{name}",
            "network_mode": f"container:{holder}",
            "labels": self._labels,
        }

    def _volume(self, name: str) -> Any:
        return self._engine.volumes.create(f"{self._name.short}-{name}", labels=self._labels)
