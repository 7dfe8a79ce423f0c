"""Three ZooKeepers and three agents in containers: the services of docker/compose.yaml, but for Spark.

The services carry a label with the process that they belong to. What a killed process has left behind is
removed before the next start (`tidelock.testing.labelled.sweep`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from testcontainers.core.docker_client import DockerClient

from demo.containers import engine
from demo.containers.project import Project
from tests.support.waiting import eventually
from tidelock import processes
from tidelock.loopback_names import LOOPBACK
from tidelock.testing import labelled
from tidelock.testing.owners import LABEL, owner_of

ZOOKEEPERS: Final = ("zookeeper1", "zookeeper2", "zookeeper3")
#: An agent in a container starts in some seconds; three of them share two cores with other tests.
HEALTHY_TIMEOUT_S: Final = 120.0
LOG_TAIL_LINES: Final = 30


class Cluster:
    """The running cluster.

    Attributes:
        agents: The agents' containers, by replica.
        zookeepers: The containers of ZooKeeper.
        secret: The shared secret, which clients send as their token.
    """

    def __init__(self, services: Project, client: Any) -> None:
        self.secret = services.secret
        self.agents = {
            place.id: client.containers.get(services.container(place.id)) for place in services.places
        }
        self.zookeepers = [client.containers.get(services.container(name)) for name in ZOOKEEPERS]
        self._places = {place.id: place for place in services.places}

    @property
    def replicas(self) -> list[str]:
        """The ids, in order."""
        return list(self._places)

    def url(self, replica: str) -> str:
        """Return the address of an agent's API, seen from outside."""
        return f"http://{LOOPBACK}:{self._places[replica].api}"


@contextlib.contextmanager
def running(agent_image: str, zookeeper_image: str) -> Iterator[Cluster]:
    """A cluster that is healthy; it is removed afterwards with networks and volumes."""
    images = {"TIDELOCK_IMAGE": agent_image, "TIDELOCK_ZOOKEEPER_IMAGE": zookeeper_image}
    compose = engine.compose()
    labelled.sweep()
    services = Project("test", compose, images)
    with contextlib.closing(DockerClient().client) as client:
        try:
            services.up(*(place.id for place in services.places))
            cluster = Cluster(services, client)
            for agent in cluster.agents.values():
                wait_healthy(agent)
            yield cluster
        finally:
            services.down()


@contextlib.contextmanager
def alone(image: str, environ: Mapping[str, str]) -> Iterator[Any]:
    """One container that has been started, without a network."""
    with contextlib.closing(DockerClient().client) as client:
        started = client.containers.run(
            image, detach=True, network_mode="none", environment=dict(environ), labels=_labels()
        )
        try:
            yield started
        finally:
            started.remove(force=True, v=True)


def kill(container: Any) -> None:
    """End a container as a crash would (SIGKILL to every process of it)."""
    container.kill("SIGKILL")
    assert wait(container) == 128 + 9


def wait(container: Any) -> int:
    """Wait until a container has ended, and return its exit code."""
    return int(container.wait()["StatusCode"])


def start_again(container: Any) -> None:
    """Start a container that has ended, with the content of its volume, and wait until it is healthy."""
    container.start()
    wait_healthy(container)


@contextlib.contextmanager
def moved(container: Any) -> Iterator[None]:
    """A container that was stopped and started again, with another address on each of its networks.

    An engine gives the lowest address that is free, so that another container takes the former ones.
    """
    before = _addresses(container)
    container.stop(timeout=60)
    engine_client = container.client
    taker = engine_client.containers.create(
        container.image, entrypoint=["sleep", "infinity"], labels=_labels(), network_mode="none"
    )
    try:
        engine_client.networks.get("none").disconnect(taker)
        for network in before:
            engine_client.networks.get(network).connect(taker)
        taker.start()
        start_again(container)
        after = _addresses(container)
        assert all(after[network] != address for network, address in before.items()), (before, after)
        yield
    finally:
        taker.remove(force=True, v=True)


def wait_healthy(container: Any) -> None:
    """Wait until the health check of a container succeeds; AssertionError with the log if it does not."""

    def settled() -> str:
        container.reload()
        state = container.attrs["State"]
        if state["Status"] != "running":
            return str(state["Status"])
        health = str(state["Health"]["Status"])
        return "" if health == "starting" else health

    status = eventually(settled, timeout_s=HEALTHY_TIMEOUT_S, what=f"the health of {container.name}")
    assert status == "healthy", f"{container.name} is {status}:\n{log(container)}"


def health(container: Any) -> str:
    """Return what the health check of a container that runs says; "" if it does not run."""
    container.reload()
    state = container.attrs["State"]
    return str(state["Health"]["Status"]) if state["Status"] == "running" else ""


def main_process(container: Any) -> str:
    """Return the id of a service's process inside its container, where an init is the first one."""
    children = container.exec_run(["cat", "/proc/1/task/1/children"]).output.decode().split()
    assert len(children) == 1, children
    return str(children[0])


def signal(container: Any, name: str) -> None:
    """Send a signal to a service's process from inside, as the kernel or another process there would."""
    sent = container.exec_run(["sh", "-c", f"kill -{name} {main_process(container)}"])
    assert sent.exit_code == 0, sent.output


def log(container: Any) -> str:
    """Return the end of a container's output."""
    written: bytes = container.logs(tail=LOG_TAIL_LINES)
    return written.decode(errors="replace")


def _addresses(container: Any) -> dict[str, str]:
    container.reload()
    networks = container.attrs["NetworkSettings"]["Networks"]
    return {name: network["IPAddress"] for name, network in networks.items()}


def _labels() -> dict[str, str]:
    return {LABEL: owner_of(processes.me())}
