"""What every part of an agent is made of, and what the parts tell the agent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

from tidelock.csnlog.cluster.bootstrap import OwnSession
from tidelock.csnlog.core.ids import PartId, ReplicaId
from tidelock.csnlog.core.machine import InvariantError
from tidelock.csnlog.core.model import LogRecord
from tidelock.csnlog.log import LogState
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import Condition
from tidelock.replica_agent.lifecycle.local import Local
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replication.core.model import Held, ResolvedRecord


class Events(Protocol):
    """What the parts tell the agent."""

    async def deliver(self, records: list[LogRecord]) -> None:
        """The next records of the log."""

    def log_state(self, state: LogState, reason: str) -> None:
        """The log follows, is suspended, or has ended."""

    def applied(self, records: Sequence[ResolvedRecord]) -> None:
        """A batch is visible here."""

    def part_held(self, part: PartId) -> None:
        """A part is durable here now."""

    def wrong_bytes(self, replica: ReplicaId, part: PartId) -> None:
        """A peer has sent bytes that are not those of the part."""

    def acknowledged(self, held: Held) -> None:
        """A peer has answered a push."""

    def corrupt(self, part: PartId, detail: str) -> None:
        """A query has found wrong bytes."""

    def broken(self, error: InvariantError) -> None:
        """A state machine contradicts itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What every part of an agent is made of.

    Attributes:
        stack: Closes the parts, the last one first.
    """

    local: Local
    store: ZkStore
    session: OwnSession
    events: Events
    condition: Condition
    metrics: Metrics
    stack: AsyncExitStack

    @property
    def settings(self) -> AgentSettings:
        """The settings of this agent."""
        return self.local.settings

    @property
    def replica(self) -> ReplicaId:
        """The own id."""
        return self.session.replica

    @property
    def reader(self) -> CatalogReader:
        """Of the catalog."""
        return self.local.catalog.reader
