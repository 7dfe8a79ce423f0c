"""The service for people and monitoring: status, the log, the story of a transaction, metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from prometheus_client import generate_latest

from tidelock.csnlog.cluster.bootstrap import OwnSession
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, Tid
from tidelock.csnlog.core.model import LogRecord
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.log import CsnLog
from tidelock.errors import BadRequestError
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import Condition
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replica_agent.snapshots.horizon import HorizonMover
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.transactions.outcomes.resolver import OutcomeResolver
from tidelock.replica_agent.transactions.outcomes.rules import CLIENT
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replication.apply import Applier


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class StatusService:
    """Shows this replica, and what it knows about the others, in any state."""

    settings: AgentSettings
    condition: Condition
    session: OwnSession
    clock: Callable[[], float]
    metrics: Metrics
    reader: CatalogReader
    waiters: CsnWaiters
    log: CsnLog
    membership: Membership
    transactions: Transactions
    outcomes: OutcomeResolver
    applier: Applier
    history: HorizonMover

    async def status(self) -> dict[str, Any]:
        """Return the content of GET /status."""
        await self.membership.ask()
        return {
            "id": self.session.replica,
            "cluster_id": self.session.cluster.cluster_id,
            "state": self.condition.state.value,
            "reason": self.condition.reason,
            "boot": self.session.boot,
            "snapshot_csn": self.waiters.reached,
            "end_csn": max(self.log.end, self.waiters.reached),
            "cluster_csn": self.membership.cluster_csn(),
            "waiting_for": self._waiting_for(),
            "replicas": self._replicas(),
            "tables": len(self.reader.tables(self.waiters.reached)),
            "copies": self.session.cluster.copies,
            "wait_bound_s": self.settings.wait_bound_s,
            "open_transactions": len(self.transactions.live()),
            "horizon": self.reader.horizon(),
            "tail": self.reader.meta("tail"),
            **self.history.describe(),
        }

    def _replicas(self) -> list[dict[str, Any]]:
        return [
            {
                "id": replica,
                "api": found.member.api,
                "data": found.member.data,
                "rack": found.member.rack,
                "alive": found.alive,
                "state": self._state_of(replica, alive=found.alive),
                "snapshot_csn": self.membership.snapshot_of(replica, found),
                "oldest": found.progress.oldest if found.progress else None,
                "open": list(found.progress.open) if found.progress else [],
            }
            for replica, found in sorted(self.membership.view.items())
        ]

    def _state_of(self, replica: ReplicaId, *, alive: bool) -> str:
        if replica == self.session.replica:
            return self.condition.state.value
        return "alive" if alive else "silent"

    def _waiting_for(self) -> dict[str, Any] | None:
        blocked = self.applier.blocked
        return asdict(blocked) if blocked else None

    async def explain(self, tid: Tid) -> dict[str, Any]:
        """Return the story of a transaction.

        It has the transaction's state here, its outcome, where its parts are stored, and what it waits for.
        """
        outcome = await self.outcomes.outcome(tid, CLIENT)
        live = [tx.describe(self.clock()) for tx in self.transactions.all() if tx.tid == tid]
        return {
            "tid": str(tid),
            "home": tid.home,
            "snapshot_csn": tid.snapshot,
            "outcome": type(outcome).__name__.lower(),
            "csn": outcome.csn if isinstance(outcome, Committed) else None,
            "asked": self.session.replica,
            "here": live[0] if live else None,
            "parts": self._parts_of(tid),
            "replicas": {
                replica: self.membership.snapshot_of(replica, found)
                for replica, found in self.membership.view.items()
            },
            "waiting_for": self._waiting_for(),
        }

    def _parts_of(self, tid: Tid) -> list[dict[str, Any]]:
        return [
            {
                "part": p.part,
                "table": p.table,
                "path": p.path,
                "rows": p.rows,
                "length": p.length,
                "state": p.state,
                "file": p.file,
                "csn": p.creation_csn,
            }
            for p in self.reader.parts_of(str(tid))
        ]

    async def records(self, after: int | None, limit: int | None) -> list[LogRecord]:
        """Return records of the log after a CSN, read from ZooKeeper.

        Raises:
            BadRequestError: The limit exceeds the size of one answer.
        """
        most = self.settings.log_answer_records_max
        wanted = most if limit is None else limit
        if not 0 < wanted <= most:
            msg = f"limit={wanted} is outside 1..{most} (log_answer_records_max)"
            raise BadRequestError(msg)
        return await self.log.records(CSN_NONE if after is None else Csn(max(after - 1, 0)), wanted)

    def metrics_text(self) -> bytes:
        """Return the metrics in the format of Prometheus."""
        return generate_latest(self.metrics.registry)
