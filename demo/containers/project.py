"""The services of docker/compose.yaml under a name, on ports and with a secret of their own."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import tempfile
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
from tidelock.testing import labelled
from tidelock.testing.owners import LABEL, owner_of

FILE: Final = ROOT / "docker" / "compose.yaml"
REPLICAS: Final = ("r1", "r2", "r3")
#: The variable of docker/compose.yaml for the label with the owner of all that a run starts.
OWNER_VARIABLE: Final = "TIDELOCK_OWNER"
#: How long the services may take to become healthy, in seconds. They start in three steps.
UP_TIMEOUT_S: Final = 600.0
#: How long an agent may take to drain when all is over, in seconds.
_STOP_S: Final = 20


class Project:
    """The services, not started yet.

    Args:
        purpose: The end of its name, before the number of this process.
        compose: The words that start compose.
        images: Variables of docker/compose.yaml that name images.

    Attributes:
        name: The name of the project: of its containers, networks and volumes.
        owner: The value of the label of all that it starts: this process, which has to end it.
        places: Where the replicas are.
        secret: The agents' shared secret.
        end: What a user types to end services that were kept.
    """

    def __init__(self, purpose: str, compose: Sequence[str], images: Mapping[str, str]) -> None:
        me = processes.me()
        self.name: Final = f"tidelock-{purpose}-{me.pid}"
        self.owner = owner_of(me)
        ports = iter(free_ports(2 * len(REPLICAS)))
        self.places: Final = [
            Place(replica, f"{replica}.localhost", next(ports), next(ports)) for replica in REPLICAS
        ]
        self.secret: Final = secrets.token_hex(16)
        # Only its owner may enter the folder; in it, the agents' user may read the file.
        self._folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        file = self._folder / "secret"
        file.write_text(f"{self.secret}\n", encoding="ascii")
        file.chmod(0o444)
        self._command = [*compose, "--file", str(FILE)]
        down = shlex.join([*self._command, "--project-name", self.name, "down", "--volumes"])
        self.end: Final = f"{down} && rm -r {self._folder}"
        self._env = {
            **os.environ,
            **images,
            "COMPOSE_PROJECT_NAME": self.name,
            OWNER_VARIABLE: self.owner,
            "TIDELOCK_SECRET_FILE": str(file),
            **{f"TIDELOCK_{place.id.upper()}_API_PORT": str(place.api) for place in self.places},
            **{f"TIDELOCK_{place.id.upper()}_DATA_PORT": str(place.data) for place in self.places},
        }

    def keep(self) -> None:
        """Let the services stay when this process has ended; a user has to end them."""
        self.owner = self._env[OWNER_VARIABLE] = self.name

    def up(self, *services: str) -> None:
        """Start services, by default all, and what they wait for; DemoError with the reason if they do not.

        With all services the call returns when they are healthy: the driver waits for the others. So no flag
        to wait is needed, which an older compose does not have.
        """
        command = [*self._command, "up", "--detach", "--no-build", *services]
        engine.run(command, env=self._env, timeout_s=UP_TIMEOUT_S)

    def down(self) -> None:
        """End the services and remove them, their networks and their volumes."""
        command = [*self._command, "down", "--volumes", "--timeout", str(_STOP_S)]
        with suppress(DemoError):  # what it has left is removed by its label
            engine.run(command, env=self._env)
        labelled.remove(f"{LABEL}={self.owner}")
        shutil.rmtree(self._folder)

    def save_output(self) -> Path:
        """Write all that the services have printed to a file, which stays; DemoError if there is none."""
        output = engine.run([*self._command, "logs", "--no-color"], env=self._env)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix=f"{self.name}-", suffix=".log", delete=False
        ) as file:
            file.write(output)
        return Path(file.name)

    def container(self, service: str) -> str:
        """Return the id of the container of a service; DemoError if there is none."""
        labels = (f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}")
        found = labelled.containers(*labels)
        if len(found) != 1:
            raise DemoError(f"expected one container of {service} in {self.name}, found {len(found)}")
        return found[0]


@contextmanager
def running(project: Project, *, keep: bool = False) -> Iterator[Project]:
    """Start the services for the block; at its end nothing of them is left, not after an interrupt either.

    An error gets a note with the file of all that the services have printed.

    Args:
        project: The services.
        keep: Leave them running, also after an error, but not after an interrupt.
    """
    if keep:
        project.keep()
    try:
        project.up()
        yield project
    except Exception as error:
        if keep:
            error.add_note(f"the containers of {project.name} still run")
        else:
            with suppress(DemoError):
                error.add_note(f"the output of all services is in {project.save_output()}")
            project.down()
        raise
    except BaseException:
        project.down()
        raise
    if not keep:
        project.down()
