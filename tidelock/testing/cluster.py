"""The interface of a cluster for tests; its two kinds are in `process_cluster` and `container_cluster`."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tidelock.client import Database, connect
from tidelock.errors import BadRequestError, ConfigError, UnavailableError
from tidelock.testing.network import Network
from tidelock.testing.node import READY_TIMEOUT_S, Node
from tidelock.zookeeper import ZooKeeperServer

#: The sizes of an ensemble.
_ZOOKEEPERS: Final = (1, 3)


class Cluster(ABC):
    """Replicas, ZooKeepers and maybe Spark, for tests; a `with` block starts and removes all of it.

    Make one with `processes` or `containers`. The arguments of both:

    Args:
        folder: Files and logs of the cluster; made if it does not exist. It stays.
        replicas: Number of replicas; they are "r1", "r2", ...
        copies: Durable copies of a commit.
        zookeepers: Number of ZooKeepers, 1 or 3; they are "z1", ...
        spark_workers: Number of Spark workers, "w1", ..., with one core each, and "master"; 0: no Spark.
        settings: Settings of all agents, by the names of their fields (docs/configuration.md).
        environment: Variables of all agents.
        epoch_limit: Records of an epoch of the log; default: the agents' default.
        disk_bytes: Give each replica a file system of its own, in memory, of so many bytes.

    Attributes:
        kind: "processes" or "containers".
        folder: See above.
        secret: The shared secret of the agents, which a client sends as its token; None if they have none.
        network: The network between the nodes.
        driver_host: The address of the host as the nodes see it: `spark.driver.host` of a driver on the host.
    """

    kind: str
    driver_host: str

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
        secret: str | None,
    ) -> None:
        if zookeepers not in _ZOOKEEPERS:
            raise ConfigError(f"expected 1 or 3 ZooKeepers, found {zookeepers}; two survive no more than one")
        if not 1 <= copies <= replicas:
            raise ConfigError(
                f"expected 1 or more replicas and no more copies than replicas, found {replicas} and {copies}"
            )
        if spark_workers < 0:
            raise ConfigError(f"expected 0 or more Spark workers, found {spark_workers}")
        self.folder = folder.resolve()
        self.secret = secret
        self._copies = copies
        self._founders = [f"r{number + 1}" for number in range(replicas)]
        self._servers = [f"z{number + 1}" for number in range(zookeepers)]
        self._workers = [f"w{number + 1}" for number in range(spark_workers)]
        named = {f"TIDELOCK_{name.upper()}": str(value) for name, value in settings.items()}
        self._environment = {**named, **environment}
        self.network = Network(None, lack="call start() first")
        self._nodes: dict[str, Node] = {}
        self._answering: dict[str, ZooKeeperServer] = {}

    @classmethod
    def processes(
        cls,
        folder: Path,
        *,
        replicas: int = 3,
        copies: int = 2,
        zookeepers: int = 1,
        spark_workers: int = 0,
        settings: Mapping[str, Any] = {},
        environment: Mapping[str, str] = {},
        epoch_limit: int | None = None,
        isolated: bool = False,
        disk_bytes: int | None = None,
    ) -> Cluster:
        """Return a cluster of processes, not started yet. The arguments are those of the class, and one more.

        Args:
            isolated: Put each node into a network namespace of its own, with an address of its own.
                `network` needs that, and it needs root on Linux. Without it all nodes listen on 127.0.0.1.

        Raises:
            ConfigError: A number is out of its range, or this process may not make networks or disks.
        """
        from tidelock.testing.process_cluster import ProcessCluster  # noqa: PLC0415 - imports this one

        return ProcessCluster(
            folder,
            replicas=replicas,
            copies=copies,
            zookeepers=zookeepers,
            spark_workers=spark_workers,
            settings=settings,
            environment=environment,
            epoch_limit=epoch_limit,
            isolated=isolated,
            disk_bytes=disk_bytes,
        )

    @classmethod
    def containers(
        cls,
        folder: Path,
        *,
        replicas: int = 3,
        copies: int = 2,
        zookeepers: int = 1,
        spark_workers: int = 0,
        settings: Mapping[str, Any] = {},
        environment: Mapping[str, str] = {},
        epoch_limit: int | None = None,
        disk_bytes: int | None = None,
        agent_image: str = "tidelock-agent",
        zookeeper_image: str = "zookeeper:3.9",
        spark_image: str = "tidelock-spark",
    ) -> Cluster:
        """Return a cluster of containers, not started yet; the arguments are those of the class, and images.

        The host must be the engine's own, and this process must be root: it enters the network namespaces of
        the containers, and fills and empties their disks. The images must be there (docker/README.md).

        Args:
            agent_image: Of this version of Tidelock.
            zookeeper_image: The official image, or that of docker/zookeeper-image.sh.
            spark_image: With the Python of the driver.

        Raises:
            ConfigError: A number is out of its range, or this process is not root. At the start also: the
                extra `testing` is not installed, or no engine answers.
        """
        from tidelock.testing.container_cluster import ContainerCluster  # noqa: PLC0415 - imports this one

        return ContainerCluster(
            folder,
            replicas=replicas,
            copies=copies,
            zookeepers=zookeepers,
            spark_workers=spark_workers,
            settings=settings,
            environment=environment,
            epoch_limit=epoch_limit,
            disk_bytes=disk_bytes,
            images={"agent": agent_image, "zookeeper": zookeeper_image, "spark": spark_image},
        )

    # -- names and addresses --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def replicas(self) -> list[str]:
        """The ids of the replicas that are members, or are being added."""

    @property
    def zookeepers(self) -> list[str]:
        """The names of the ZooKeepers."""
        return [*self._servers]

    @property
    @abstractmethod
    def spark_master(self) -> str | None:
        """The address for Spark sessions, `spark://host:port`; None if the cluster has no Spark."""

    @property
    def urls(self) -> list[str]:
        """The API addresses of all replicas, reachable from the host."""
        return [self.url(replica) for replica in self.replicas]

    @abstractmethod
    def url(self, replica: str) -> str:
        """Return the address of a replica's API, reachable from the host."""

    @abstractmethod
    def data_address(self, replica: str) -> str:
        """Return the address of a replica's snapshot file system, `host:port`."""

    @property
    @abstractmethod
    def zk(self) -> str:
        """ZooKeeper's connect string with the cluster's root, reachable from the host."""

    def connect(self, replica: str | None = None, **options: Any) -> Database:
        """Connect to the cluster, or to one replica alone; options and errors as in `tidelock.connect`."""
        urls = self.urls if replica is None else [self.url(replica)]
        return connect(urls, **{"replica": replica, "token": self.secret, **options})

    def node(self, name: str) -> Node:
        """Return a replica, a ZooKeeper, or a Spark master or worker, also a replica that was removed."""
        if not self._nodes:
            raise UnavailableError("the cluster was not started yet, so it has no nodes; call start()")
        if (found := self._nodes.get(name)) is None:
            raise BadRequestError(f"expected one of {', '.join(self._nodes)}, found {name!r}")
        return found

    def leader(self) -> str | None:
        """Return the ZooKeeper that leads, or is alone; None if the host reaches no leader."""
        for name, server in self._answering.items():
            if server.mode() in {"leader", "standalone"}:
                return name
        return None

    # -- members --------------------------------------------------------------------------------------------

    @abstractmethod
    def add(self, replica: str) -> Node:
        """Register a fresh member and lay it out; then `start` it. MembershipError if it is refused."""

    @abstractmethod
    def replace_member(self, dead: str, fresh: str) -> Node:
        """Replace a dead member by a fresh one; then `start` it. Errors as in `add`."""

    @abstractmethod
    def forget(self, replica: str) -> None:
        """Take a replica that was removed from the cluster out of `replicas` and `urls`; its node stays."""

    # -- begin and end --------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start all nodes and wait until they are ready. What killed runs have left behind is removed before.

        After an error, some nodes may run: `close` ends them. A closed cluster does not start again.

        Args:
            timeout_s: Longest time for each step: ZooKeepers, replicas, Spark.

        Raises:
            UnavailableError: A node did not become ready; the message has the end of its log.
        """

    @abstractmethod
    def close(self) -> None:
        """End all nodes at once, and remove what they had but for the files in the folder."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            opened.callback(self.close)
            self.start()
            opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
