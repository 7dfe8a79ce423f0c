"""Nodes that are containers of the engine on this machine.

The network namespace of a node belongs to a second container, which only sleeps: so address, cuts and brakes
stay when the node is killed and starts again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import urllib3

from tidelock.errors import UnavailableError
from tidelock.testing import services, spark_master
from tidelock.testing.clock import Clock
from tidelock.testing.disks import Disk
from tidelock.testing.node import READY_TIMEOUT_S, Node
from tidelock.zookeeper import ZooKeeperServer

#: How long an agent may take to answer, in seconds.
_ANSWER_TIMEOUT_S: Final = 2.0
#: Time that a container may take to end after SIGTERM, in seconds: more than an agent drains.
_STOP_GRACE_S: Final = 30
_OK: Final = 200
_POLL_S: Final = 0.05
_KILLED_S: Final = 60.0
_FROZEN_S: Final = 30.0
#: Part of the engine's error when a control group could not be frozen.
_BUSY: Final = "unable to freeze"


class ContainerNode(Node):
    """A node that is a container, made and not started.

    Args:
        engine: The client of the engine (docker.DockerClient).
        name: See `Node`.
        address: See `Node`.
        data_dir: See `Node`.
        options: The image, and all else that `containers.create` of the engine's client takes.
        disk: See `Node`.
        clock: See `Node`.
    """

    def __init__(
        self,
        engine: Any,
        name: str,
        address: str,
        data_dir: Path,
        *,
        options: Mapping[str, Any],
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(name, address, data_dir, disk=disk, clock=clock)
        self._engine = engine
        self._options = dict(options)
        self._former_log = ""
        self._container = engine.containers.create(**self._options)

    @property
    def pid(self) -> int | None:
        """The init of the container, as the host sees it."""
        state = self._state()
        return int(state["Pid"]) if state["Running"] else None

    def log(self) -> str:
        """The output of the container, and of those that it has followed."""
        written: bytes = self._container.logs()
        return self._former_log + written.decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL to the init, with which the kernel kills all others in its pid namespace."""
        if not self.running:
            return
        self._container.kill("SIGKILL")
        self._await_end()

    def stop(self) -> None:
        """SIGTERM to the init, which hands it on, and SIGKILL if that takes too long."""
        self.resume()
        self._container.stop(timeout=_STOP_GRACE_S)

    def start(self, *, timeout_s: float = READY_TIMEOUT_S, wait: bool = True) -> None:
        """Start the container; `Node.start` says more."""
        if not self.running:
            self._container.start()
        if wait:
            self.wait_ready(timeout_s)

    def pause(self) -> None:
        """Freeze the control group of the container.

        The kernel may refuse that while a process of the group forks; nothing is frozen then.
        """
        deadline = time.monotonic() + _FROZEN_S
        while self.running and not self._state()["Paused"]:
            try:
                self._container.pause()
            except Exception as error:  # the client of the engine is an extra, and so is the class
                if _BUSY not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)

    def resume(self) -> None:
        """Thaw the control group."""
        if self._state()["Paused"]:
            self._container.unpause()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until it is ready; UnavailableError at once if it has ended."""
        deadline = time.monotonic() + timeout_s
        while not self.ready():
            if not self.running or time.monotonic() > deadline:
                raise self._not_ready(timeout_s)
            time.sleep(_POLL_S)

    def _state(self) -> Mapping[str, Any]:
        self._container.reload()
        state: Mapping[str, Any] = self._container.attrs["State"]
        return state

    def _await_end(self) -> None:
        deadline = time.monotonic() + _KILLED_S
        while self.running:
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"the container of {self.name} still runs {_KILLED_S:.0f} s after SIGKILL"
                )
            time.sleep(_POLL_S)


class ReplicaContainer(ContainerNode):
    """An agent."""

    def ready(self) -> bool:
        """Return whether the agent says so."""
        url = f"http://{self.address}:{services.API_PORT}/readyz"
        try:
            answer = urllib3.request("GET", url, timeout=_ANSWER_TIMEOUT_S, retries=False)
        except urllib3.exceptions.HTTPError:
            return False
        return answer.status == _OK

    def _order_takeover(self) -> None:
        """The environment of a container cannot be changed, so it is made again."""
        self.kill()
        self._former_log = self.log()
        self._container.remove()
        environment = {**self._options["environment"], "TIDELOCK_REPLACE_DISK": "true"}
        self._options["environment"] = environment
        self._container = self._engine.containers.create(**self._options)


class ZooKeeperContainer(ContainerNode):
    """A server of ZooKeeper."""

    @property
    def server(self) -> ZooKeeperServer:
        """The server, as its clients see it."""
        return ZooKeeperServer(self.data_dir, services.ZOOKEEPER_PORT, self.address)

    def ready(self) -> bool:
        """Return whether the server serves clients."""
        return self.server.mode() is not None


class SparkContainer(ContainerNode):
    """A master or a worker of Spark.

    Attributes:
        page: Address of the master's page.
    """

    page: str = ""

    def ready(self) -> bool:
        """Return whether the master answers, or knows this worker."""
        return self.running and spark_master.knows(self.page, self.name, self.address)
