"""The questions of system tables that only a running agent can answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from tidelock.csnlog.core.ids import TableId
from tidelock.csnlog.core.model import LogRecord, PinState
from tidelock.replication.core.lock_rules import LockInfo
from tidelock.wire.cluster import ReplicaStatus
from tidelock.wire.ids import TableName
from tidelock.wire.transactions import TransactionInfo


class SettingValue(msgspec.Struct, frozen=True):
    """A setting of the agent: its value and its default as texts, and its description.

    A secret has neither value: only whether it is set.
    """

    name: str
    value: str | None
    default: str | None
    is_default: bool
    is_secret: bool
    description: str


class LiveSource(Protocol):
    """The running agent. Its methods read; each raises UnavailableError where it cannot."""

    def names(self) -> Mapping[TableId, TableName]:
        """Return the names of the tables now."""
        ...

    async def replicas(self) -> Sequence[ReplicaStatus]:
        """Return all replicas, as the agent sees them."""
        ...

    async def log_records(self) -> Sequence[LogRecord]:
        """Return the newest records of the log that ZooKeeper keeps, in their order."""
        ...

    async def locks(self) -> Sequence[LockInfo]:
        """Return the removal locks in ZooKeeper."""
        ...

    async def pins(self) -> Mapping[str, PinState]:
        """Return the pins in ZooKeeper, by their ids."""
        ...

    async def open_transactions(self) -> Sequence[TransactionInfo]:
        """Return the transactions of this home that have not ended."""
        ...

    def settings(self) -> Sequence[SettingValue]:
        """Return the settings."""
        ...
