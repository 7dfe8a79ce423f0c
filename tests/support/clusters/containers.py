"""A ZooKeeper and three agents in containers, as docker/compose.yaml has them, but on ports of their own.

testcontainers' own cleaner is an image from a registry, which may be out of reach. So everything carries a
label with the process it belongs to, and what a killed process left behind is removed before the next start.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Final

import psutil
from docker.errors import NotFound  # type: ignore[import-not-found]
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.network import Network

from tests.support import names
from tests.support.clusters import compose
from tests.support.waiting import eventually
from tidelock.ports import free_ports

OWNER_LABEL: Final = "tidelock.test.owner"
#: An agent in a container starts in some seconds; three of them share two cores with other tests.
HEALTHY_TIMEOUT_S: Final = 120.0
LOG_TAIL_LINES: Final = 30
#: How much the start time of a process may seem to move, in seconds, since the clock is adjusted.
CLOCK_SLACK_S: Final = 10.0


class Cluster:
    """The running cluster.

    Attributes:
        secret: The shared secret, which clients send as their token.
    """

    def __init__(self, agent_image: str) -> None:
        """Choose secret and ports; nothing is started."""
        self.secret = secrets.token_hex(16)
        self.agents: dict[str, DockerContainer] = {}
        self._image = agent_image
        self._services = compose.services({"TIDELOCK_SECRET": self.secret})
        replicas = [name for name, one in self._services.items() if one.published and not one.profiles]
        ports = iter(free_ports(2 * len(replicas)))
        self._ports = {replica: (next(ports), next(ports)) for replica in replicas}

    @property
    def replicas(self) -> list[str]:
        """The ids, in order."""
        return list(self._ports)

    @property
    def names(self) -> list[str]:
        """The host names under which the agents are advertised."""
        return [self._services[replica].environment["TIDELOCK_ADVERTISE"] for replica in self._ports]

    def url(self, replica: str) -> str:
        """Return the address of an agent's API, seen from outside."""
        return f"http://127.0.0.1:{self._ports[replica][0]}"

    def start(self, network: Network, stack: contextlib.ExitStack, zookeeper_image: str) -> None:
        """Start all containers, to be removed with `stack`, and wait until they are healthy."""
        server = _container(zookeeper_image, network, aliases=("zookeeper",))
        stack.enter_context(server)
        wait_healthy(server)
        for replica in self._ports:
            self.agents[replica] = self._agent(replica, network)
            stack.enter_context(self.agents[replica])
        for agent in self.agents.values():
            wait_healthy(agent)

    def _agent(self, replica: str, network: Network) -> DockerContainer:
        service, (api, data) = self._services[replica], self._ports[replica]
        own = {"TIDELOCK_API_PORT": str(api), "TIDELOCK_DATA_PORT": str(data)}
        agent = _container(self._image, network, aliases=(replica, *service.aliases), init=service.init)
        agent.with_envs(**{**service.environment, **own})
        # The ports of compose under other numbers. A bare number would be published to the whole world.
        agent.ports = {str(port): (names.LOOPBACK, port) for port in (api, data)}  # type: ignore[misc]
        return agent


@contextlib.contextmanager
def running(agent_image: str, zookeeper_image: str) -> Iterator[Cluster]:
    """A cluster that is healthy; it is removed afterwards with network and volumes."""
    testcontainers_config.ryuk_disabled = True
    sweep()
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network(docker_network_kw={"labels": _labels()}))
        cluster = Cluster(agent_image)
        cluster.start(network, stack, zookeeper_image)
        yield cluster


@contextlib.contextmanager
def alone(image: str, environ: Mapping[str, str]) -> Iterator[DockerContainer]:
    """One container that has been started, without a network."""
    testcontainers_config.ryuk_disabled = True
    with (
        DockerContainer(image)
        .with_kwargs(labels=_labels(), network_mode="none")
        .with_envs(**environ) as started
    ):
        yield started


def kill(container: DockerContainer) -> None:
    """End a container as a crash would (SIGKILL to every process of it)."""
    container.get_wrapped_container().kill("SIGKILL")
    assert container.wait() == 128 + 9


def start_again(container: DockerContainer) -> None:
    """Start a container that has ended, with the content of its volume, and wait until it is healthy."""
    container.get_wrapped_container().start()
    wait_healthy(container)


def wait_healthy(container: DockerContainer) -> None:
    """Wait until the image's health check succeeds; AssertionError with the log if it does not."""

    def settled() -> str:
        container.reload()
        state = container.get_wrapped_container().attrs["State"]
        if state["Status"] != "running":
            return str(state["Status"])
        health = str(state["Health"]["Status"])
        return "" if health == "starting" else health

    status = eventually(settled, timeout_s=HEALTHY_TIMEOUT_S, what=f"the health of {container.image}")
    assert status == "healthy", f"{container.image} is {status}:\n{log(container)}"


def log(container: DockerContainer) -> str:
    """Return the end of a container's output."""
    written: bytes = container.get_wrapped_container().logs(tail=LOG_TAIL_LINES)
    return written.decode(errors="replace")


def sweep() -> None:
    """Remove the containers and networks of test processes that have ended."""
    client = DockerClient().client
    with contextlib.closing(client):
        left = [*client.containers.list(all=True, filters={"label": OWNER_LABEL}, ignore_removed=True)]
        for container in left:
            if _ownerless(container.labels):
                with contextlib.suppress(NotFound):
                    container.remove(force=True, v=True)
        for network in client.networks.list(filters={"label": OWNER_LABEL}):
            if _ownerless(network.attrs["Labels"]):
                with contextlib.suppress(NotFound):
                    network.remove()


def _container(
    image: str, network: Network, *, aliases: tuple[str, ...], init: bool = False
) -> DockerContainer:
    container = DockerContainer(image).with_network(network).with_network_aliases(*aliases)
    return container.with_kwargs(labels=_labels(), init=init)


def _labels() -> dict[str, str]:
    return {OWNER_LABEL: _owner(psutil.Process())}


def _owner(process: psutil.Process) -> str:
    return f"{process.pid}@{process.create_time():.0f}"


def _ownerless(labels: Mapping[str, Any]) -> bool:
    """Return whether the owner has ended. A pid alone is not enough: another process soon has it."""
    pid, _, begun = str(labels[OWNER_LABEL]).partition("@")
    try:
        now_begun: float = psutil.Process(int(pid)).create_time()
    except psutil.NoSuchProcess:
        return True
    return abs(now_begun - float(begun)) > CLOCK_SLACK_S
