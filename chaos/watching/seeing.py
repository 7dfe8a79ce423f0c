"""Words of replicas about themselves and each other, in answers and logs, for proofs and for heals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from chaos.world import World
from tidelock.errors import TidelockError
from tidelock.testing import Node
from workloads.agents import ask

#: How long a replica may take for an answer, in seconds: one that is cut off or frozen never answers.
ANSWER_S: Final = 3.0


def status(world: World, replica: str) -> dict[str, Any] | None:
    """Return the status that a replica tells of itself and the others; None if it does not answer."""
    found: dict[str, Any] | None = _told(world, replica, "/status")
    return found


def _told(world: World, replica: str, path: str) -> Any:
    try:
        return ask(world.cluster, replica, path, timeout_s=ANSWER_S, token=world.cluster.secret)
    except TidelockError:
        return None


def others(world: World, replica: str) -> list[str]:
    """Return the other replicas."""
    return [name for name in world.cluster.replicas if name != replica]


def views(world: World, replica: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what each other replica that answers says of this one, with the name of the one that says it."""
    for other in others(world, replica):
        for row in (status(world, other) or {}).get("replicas", []):
            if row["id"] == replica:
                yield other, row


def silent(world: World, replica: str) -> str | None:
    """Return who sees no sign of life of a replica: its session of ZooKeeper has ended."""
    return next(
        (f"{other} sees {replica} silent" for other, row in views(world, replica) if not row["alive"]), None
    )


def answering(world: World, replica: str) -> list[str] | None:
    """Return the replicas that answer this one when it asks them now; None if it does not answer itself."""
    found = _told(world, replica, "/csns/0/replicas")
    return None if found is None else [str(name) for name in found["replicas"]]


def gone(pid: int | None) -> bool:
    """Return whether a process has ended; a zombie has. None: there was none."""
    if pid is None:
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


class LogSince:
    """The log of a node from now on."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._begin = len(node.log())

    def text(self) -> str:
        """Return what was logged since; all of it, if the log was made again meanwhile."""
        found = self._node.log()
        return found[self._begin :] if len(found) >= self._begin else found

    def lines(self, event: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a name, as they were logged."""
        for line in self.text().splitlines():
            if event not in line:
                continue
            try:
                found = json.loads(line)
            except ValueError:
                continue  # a line that is being written, or one that is no event
            if isinstance(found, dict) and found.get("event") == event:
                yield found
