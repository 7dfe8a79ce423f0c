"""The cluster in containers, seen from the driver's container: agents by name, faults by order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from demo.containers.orders import Fault, Order, Place
from tidelock.client import Database, connect

_FAULTS: Final[Mapping[signal.Signals, Fault]] = {
    signal.SIGKILL: Fault.KILL,
    signal.SIGSTOP: Fault.FREEZE,
    signal.SIGCONT: Fault.THAW,
}


class RemoteCluster:
    """The replicas in containers; a `demo.cluster.DemoCluster`.

    Args:
        places: Where the replicas are.
        token: The agents' shared secret.
        give: Gives an order to the machine, and returns when it is done; DemoError if that fails.
    """

    def __init__(self, places: Sequence[Place], token: str | None, give: Callable[[Order], None]) -> None:
        self._places = {place.id: place for place in places}
        self._token = token
        self._give = give

    @property
    def replicas(self) -> list[str]:
        """The ids of all replicas."""
        return list(self._places)

    @property
    def urls(self) -> list[str]:
        """The API addresses of all agents."""
        return [self.url(replica) for replica in self._places]

    def url(self, replica: str) -> str:
        """Return the address of an agent's API."""
        place = self._places[replica]
        return f"http://{place.host}:{place.api}"

    def data_address(self, replica: str) -> str:
        """Return the address of an agent's snapshot file system, `host:port`."""
        place = self._places[replica]
        return f"{place.host}:{place.data}"

    def connect(self) -> Database:
        """Connect to the cluster."""
        return connect(self.urls, token=self._token)

    def kill(self, replica: str, signum: signal.Signals) -> bool:
        """Kill, freeze or thaw all processes of a replica; KeyError for any other signal."""
        self._give(Order(_FAULTS[signum], replica))
        return True

    def start(self, replica: str, *, timeout_s: float) -> None:  # noqa: ARG002 - who calls waits for its CSN
        """Start a replica that was killed; it answers some seconds later."""
        self._give(Order(Fault.START, replica))

    def log(self, replica: str) -> object:
        """Return where the log of an agent is."""
        return f"the output of the container of {replica}"
