"""The services of docker/compose.yaml under a name, on ports and with a secret of their own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from demo.containers import engine
from demo.containers.images import ROOT
from demo.containers.orders import Place
from demo.failure import DemoError
from tidelock import processes
from tidelock.ports import free_ports
from tidelock.processes import Identity

FILE: Final = ROOT / "docker" / "compose.yaml"
REPLICAS: Final = ("r1", "r2", "r3")
#: Label of all that a run starts, with the process that has started it.
OWNER_LABEL: Final = "tidelock.owner"
#: How long the services may take to become healthy, in seconds. They share two cores, and start in three steps.
UP_TIMEOUT_S: Final = 600.0
_STOP_S: Final = 20


def owner_of(process: Identity) -> str:
    """Return the value of the label for a process: no later process has the same."""
    return f"{process.pid}@{process.start_ticks}@{process.boot_id}"


def ownerless(owner: str) -> bool:
    """Return whether a label names a process that has ended; False for a label of another form."""
    pid, _, rest = owner.partition("@")
    ticks, _, boot = rest.partition("@")
    if not (pid.isdecimal() and ticks.isdecimal() and boot):
        return False
    return not processes.alive(Identity(int(pid), int(ticks), boot))


class Project:
    """The services, not started yet.

    Args:
        compose: The words that start compose.
        folder: For the secret; only its owner may enter it.
        images: Variables of docker/compose.yaml that name images.
    """

    def __init__(self, compose: Sequence[str], folder: Path, images: Mapping[str, str]) -> None:
        me = processes.me()
        self.name = f"tidelock-demo-{me.pid}"
        self.owner = owner_of(me)
        ports = iter(free_ports(2 * len(REPLICAS)))
        self.places = [Place(replica, f"{replica}.localhost", next(ports), next(ports)) for replica in REPLICAS]
        secret = folder / "secret"
        secret.write_text(secrets.token_hex(16) + "\n", encoding="ascii")
        secret.chmod(0o444)  # the agents are another user; the folder keeps everybody else out
        self._command = [*compose, "--file", str(FILE)]
        self._env = {
            **os.environ,
            **images,
            "COMPOSE_PROJECT_NAME": self.name,
            "TIDELOCK_OWNER": self.owner,
            "TIDELOCK_SECRET_FILE": str(secret),
            **{f"TIDELOCK_{place.id.upper()}_API_PORT": str(place.api) for place in self.places},
            **{f"TIDELOCK_{place.id.upper()}_DATA_PORT": str(place.data) for place in self.places},
        }

    def up(self) -> None:
        """Start the services, and return when they are healthy; DemoError with the reason if they are not."""
        # The driver waits for the health of everything else, so that no flag to wait is needed, which an older
        # compose does not have.
        up = [*self._command, "up", "--detach", "--no-build"]
        engine.run(up, env=self._env, timeout_s=UP_TIMEOUT_S)

    def down(self) -> None:
        """End the services and remove them, their networks and their volumes."""
        down = [*self._command, "down", "--volumes", "--timeout", str(_STOP_S)]
        with suppress(DemoError):
            engine.run(down, env=self._env)
        remove(self.owner)

    def container(self, service: str) -> str:
        """Return the id of the container of a service; DemoError if there is none."""
        found = _listed("ps", "--all", label=f"com.docker.compose.project={self.name}", service=service)
        if len(found) != 1:
            raise DemoError(f"expected one container of {service} in {self.name}, found {len(found)}")
        return found[0]


@contextmanager
def running(project: Project, *, keep: bool = False) -> Iterator[Project]:
    """Start the services for the block; at its end, however it ends, nothing of them is left.

    Args:
        keep: Leave them running when the block has succeeded.
    """
    try:
        project.up()
        yield project
    except BaseException:
        project.down()
        raise
    if not keep:
        project.down()


def sweep() -> None:
    """Remove what runs that were killed have left behind; nothing of others, and nothing without an owner."""
    containers = engine.run(
        ["docker", "ps", "--all", "--filter", f"label={OWNER_LABEL}", "--format", f'{{{{.Label "{OWNER_LABEL}"}}}}']
    )
    networks = engine.run(
        ["docker", "network", "ls", "--filter", f"label={OWNER_LABEL}", "--format", f'{{{{.Label "{OWNER_LABEL}"}}}}']
    )
    volumes = engine.run(
        ["docker", "volume", "ls", "--filter", f"label={OWNER_LABEL}", "--format", f'{{{{.Label "{OWNER_LABEL}"}}}}']
    )
    for owner in {*containers.splitlines(), *networks.splitlines(), *volumes.splitlines()}:
        if ownerless(owner):
            remove(owner)


def remove(owner: str) -> None:
    """Remove the containers, networks and volumes with the label of an owner."""
    label = f"{OWNER_LABEL}={owner}"
    for kind, command in (
        (("ps", "--all"), ["docker", "rm", "--force", "--volumes"]),
        (("network", "ls"), ["docker", "network", "rm"]),
        (("volume", "ls"), ["docker", "volume", "rm", "--force"]),
    ):
        if found := _listed(*kind, label=label):
            engine.run([*command, *found])


def _listed(*kind: str, label: str, service: str | None = None) -> list[str]:
    command = ["docker", *kind, "--quiet", "--filter", f"label={label}"]
    if service is not None:
        command += ["--filter", f"label=com.docker.compose.service={service}"]
    return engine.run(command).split()
