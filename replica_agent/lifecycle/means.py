"""The resources that every part of an agent is made from, and the events that parts report to it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Protocol

import msgspec

from tidelock.csnlog.cluster.bootstrap import OwnSession
from tidelock.csnlog.core.ids import PartId, ReplicaId
from tidelock.csnlog.core.machine import InvariantError
from tidelock.csnlog.core.model import LogRecord
from tidelock.csnlog.log import LogState
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import Condition
from tidelock.replica_agent.config.switches import Switches
from tidelock.replica_agent.lifecycle.local import Local
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.damaged_parts import DamagedParts
from tidelock.replication.core.model import Held, ResolvedRecord


class Events(Protocol):
    """The events that the parts report to the agent."""

    async def deliver(self, records: list[LogRecord]) -> None:
        """Deliver the next records of the log."""

    def log_state(self, state: LogState, reason: str) -> None:
        """Report that the log follows, is suspended, or has ended."""

    def fence_raised(self, fence: int) -> None:
        """Report the own fence after a raise of it."""

    def applied(self, records: Sequence[ResolvedRecord]) -> None:
        """Report that a batch is visible here."""

    def part_held(self, part: PartId) -> None:
        """Report that a part is durable here now."""

    def clones(self, reason: str) -> None:
        """Report that the catalog has to be replaced by a peer's, and notes that."""

    def wrong_bytes(self, replica: ReplicaId, part: PartId) -> None:
        """Report that a peer has sent bytes that are not the bytes of the part."""

    def acknowledged(self, held: Held) -> None:
        """Report that a peer has answered a push."""

    def corrupt(self, part: PartId, detail: str) -> None:
        """Report that a query has found wrong bytes."""

    def outvoted(self, reason: str) -> None:
        """Report that most other replicas show something else at a CSN: this one is wrong."""

    def broken(self, error: InvariantError) -> None:
        """Report that a state machine contradicts itself."""


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that every part of an agent is made from.

    Attributes:
        stack: Closes the parts in reverse order.
    """

    local: Local
    store: ZkStore
    session: OwnSession
    events: Events
    condition: Condition
    switches: Switches
    metrics: Metrics
    stack: AsyncExitStack

    @property
    def settings(self) -> AgentSettings:
        """The settings of this agent."""
        return self.local.settings

    @property
    def replica(self) -> ReplicaId:
        """The id of this replica."""
        return self.session.replica

    @property
    def reader(self) -> CatalogReader:
        """The reader of the catalog."""
        return self.local.catalog.reader

    @property
    def damage(self) -> DamagedParts:
        """The code that has damaged parts fetched again, which statements meet."""
        return DamagedParts(replica=self.replica, reader=self.reader, report=self.events.corrupt)
