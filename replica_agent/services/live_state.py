"""The state of this running agent, as the system tables ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticUndefined

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.core.model import LogRecord, PinState
from tidelock.csnlog.core.store import Store
from tidelock.replica_agent.audit.znodes import Znodes
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.services.status import StatusService
from tidelock.replica_agent.system_tables.live import SettingValue
from tidelock.replication.core.lock_rules import LockInfo
from tidelock.replication.locks.removal_locks import Locks
from tidelock.wire.cluster import ReplicaStatus
from tidelock.wire.ids import TableName
from tidelock.wire.transactions import TransactionInfo


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class LiveState:
    """Implements :class:`tidelock.replica_agent.system_tables.live.LiveSource`."""

    status: StatusService
    locks_here: Locks
    store: Store

    def names(self) -> Mapping[TableId, TableName]:
        """Return the names of the tables at the CSN that is applied here."""
        return self.status.reader.table_names(self.status.waiters.reached)

    async def replicas(self) -> Sequence[ReplicaStatus]:
        """Return all replicas, as this one sees them."""
        return (await self.status.status()).replicas

    async def log_records(self) -> Sequence[LogRecord]:
        """Return the last ``log_answer_records_max`` records of the log that ZooKeeper keeps."""
        most = self.status.settings.log_answer_records_max
        end = max(self.status.log.end, self.status.waiters.reached)
        return await self.status.records(Csn(max(end - most + 1, 0)), most)

    async def locks(self) -> Sequence[LockInfo]:
        """Return the removal locks in ZooKeeper."""
        return await self.locks_here.listed()

    async def pins(self) -> Mapping[str, PinState]:
        """Return the pins in ZooKeeper, by their ids."""
        return await Znodes(self.store, "system.pins").pins()

    async def open_transactions(self) -> Sequence[TransactionInfo]:
        """Return the transactions of this home that have not ended."""
        now = self.status.clock()
        return [one.describe(now) for one in self.status.transactions.live()]

    def settings(self) -> Sequence[SettingValue]:
        """Return the settings, without the values of secrets."""
        return settings_shown(self.status.settings)


def settings_shown(settings: AgentSettings) -> list[SettingValue]:
    """Return settings as everybody may see them: a secret is a field that its class keeps out of ``repr``."""
    found = []
    for name, field in type(settings).model_fields.items():
        value, secret = getattr(settings, name), field.repr is False
        found.append(
            SettingValue(
                name=name,
                value=None if secret else _text(value),
                default=None if secret else _text(field.default),
                is_default=value == field.default,
                is_secret=secret,
                description=field.description or "",
            )
        )
    return found


def _text(value: Any) -> str | None:
    """Return a value as it is written in a file of settings; None for an empty one."""
    match value:
        case None | "" | []:
            return None
        case _ if value is PydanticUndefined:
            return None
        case bool():
            return str(value).lower()
        case list() | tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)
