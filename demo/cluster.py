"""The cluster of the demo as its scenario uses it, in processes or in containers."""

from __future__ import annotations

import signal
from typing import Protocol

from tidelock.client import Database
from workloads.agents import Addressed


class DemoCluster(Addressed, Protocol):
    """A cluster that is up: processes of this machine (`LocalCluster`), or containers (`RemoteCluster`)."""

    @property
    def urls(self) -> list[str]:
        """The API addresses of all agents."""

    def connect(self) -> Database:
        """Connect to the cluster."""

    def kill(self, replica: str, signum: signal.Signals) -> bool:
        """Send SIGKILL, SIGSTOP or SIGCONT to an agent and its workers, and return when it has its effect."""

    def start(self, replica: str, *, timeout_s: float) -> None:
        """Start an agent that was killed. UnavailableError if it does not start in time."""

    def log(self, replica: str) -> object:
        """Return where the log of an agent is, for an error message."""
