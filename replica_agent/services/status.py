"""The service for people and monitoring: status, the log, the story of a transaction, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import asdict
from prometheus_client import generate_latest

from tidelock.csnlog.cluster.bootstrap import OwnSession
from tidelock.csnlog.cluster.members import MemberView
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, Tid
from tidelock.csnlog.core.model import BlockedBy, LogRecord, SkippedRecord
from tidelock.csnlog.core.results import Aborted, Committed, Outcome, Running, TooOld
from tidelock.csnlog.core.roster import LEFT_OUT
from tidelock.csnlog.log import CsnLog
from tidelock.errors import BadRequestError, TidelockError
from tidelock.replica_agent.cloning.missing_parts import MissingParts
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import AgentState, Condition
from tidelock.replica_agent.config.switches import Switches
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replica_agent.replicas.strikes import Strikes
from tidelock.replica_agent.services.lost_parts import declared_lost
from tidelock.replica_agent.services.stories import story_of
from tidelock.replica_agent.snapshots.horizon import HorizonMover
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.transactions.outcomes.resolver import OutcomeResolver
from tidelock.replica_agent.transactions.outcomes.rules import CLIENT
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replication.apply import Applier
from tidelock.replication.core.strike_rules import HeldRecords
from tidelock.wire.cluster import (
    BlockedPart,
    BlockedRecord,
    ClockInfo,
    CloneProgress,
    ExplainedPart,
    Explanation,
    HorizonBound,
    ReplicaStatus,
    SkippedRecordInfo,
    StatusAnswer,
    StrikeBounds,
    SwitchInfo,
)
from tidelock.wire.transactions import OutcomeAnswer


def outcome_answer(tid: Tid, outcome: Outcome) -> OutcomeAnswer:
    """Return an outcome as clients read it."""
    match outcome:
        case Committed(csn, time_ms):
            return OutcomeAnswer(str(tid), "committed", csn=csn, time_ms=time_ms)
        case Aborted():
            return OutcomeAnswer(str(tid), "aborted")
        case Running():
            return OutcomeAnswer(str(tid), "running")
        case TooOld(floor):
            return OutcomeAnswer(str(tid), "too_old", floor=floor)


def _blocked_by(found: BlockedBy) -> BlockedPart:
    return BlockedPart(found.csn, found.tid, found.part)


def skipped_record(word: SkippedRecord) -> SkippedRecordInfo:
    """Return a record that an operator has had skipped, as operators see it."""
    return SkippedRecordInfo(word.csn, list(word.tids), word.by, word.why, word.time_ms)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class StatusService:
    """Shows this replica, and what it knows about the others, in any state."""

    settings: AgentSettings
    condition: Condition
    switches: Switches
    session: OwnSession
    clock: Callable[[], float]
    metrics: Metrics
    reader: CatalogReader
    waiters: CsnWaiters
    log: CsnLog
    membership: Membership
    strikes: Strikes
    transactions: Transactions
    outcomes: OutcomeResolver
    applier: Applier
    missing: MissingParts
    horizon: HorizonMover

    async def status(self) -> StatusAnswer:
        """Return the state of this replica, and its knowledge of the others."""
        await self.membership.ask()
        return StatusAnswer(
            id=self.session.replica,
            cluster_id=self.session.cluster.cluster_id,
            state=self.condition.state.value,
            reason=self.condition.reason,
            boot=self.session.boot,
            snapshot_csn=self.waiters.reached,
            end_csn=max(self.log.end, self.waiters.reached),
            cluster_csn=self.membership.cluster_csn(),
            waiting_for=self._waiting_for(),
            clone=self._clone(),
            replicas=[self._replica(replica, view) for replica, view in sorted(self.membership.view.items())],
            tables=len(self.reader.table_names(self.waiters.reached)),
            copies=self.membership.copies,
            wait_bound_s=self.settings.wait_bound_s,
            read_wait_s=self.settings.read_wait_s,
            open_transactions=len(self.transactions.live()),
            landed=self.reader.landed_tids(),
            horizon=self.reader.horizon(),
            tail=self.reader.meta("tail"),
            pins=self.horizon.pins,
            holding_back=HorizonBound(**asdict(self.horizon.held_by())),
            time_ms=self.reader.meta("time_ms"),
            clock=self._clock(),
            lost=[declared_lost(one) for one in self.reader.skipped()],
            skipped=[skipped_record(word) for _, word in sorted(self.session.skips.items())],
            switches=[SwitchInfo(*shown) for shown in self.switches.shown()],
            strike=StrikeBounds(
                timeout_s=self.settings.strike_timeout_s,
                records=self.settings.max_records,
                bytes=self.settings.max_records_bytes,
            ),
        )

    def _replica(self, replica: ReplicaId, view: MemberView) -> ReplicaStatus:
        other = "alive" if view.alive else "silent"
        member = view.session.state if view.session else ""
        held = HeldRecords(0, 0) if member in LEFT_OUT else self.strikes.held(replica)
        progress = view.progress
        return ReplicaStatus(
            id=replica,
            api=view.member.api,
            data=view.member.data,
            rack=view.member.rack,
            alive=view.alive,
            state=self.condition.state.value if replica == self.session.replica else other,
            snapshot_csn=self.membership.snapshot_of(replica, view),
            oldest=progress.oldest if progress else None,
            open=list(progress.open) if progress else [],
            phase=progress.phase.value if progress else None,
            phase_since_ms=progress.since_ms if progress else None,
            blocked_by=_blocked_by(progress.blocked_by) if progress and progress.blocked_by else None,
            member=member,
            disk=view.session.disk if view.session else "",
            draining=replica in self.membership.roster.draining,
            held_records=held.records,
            held_bytes=held.bytes,
            held_s=0.0 if member in LEFT_OUT else round(self.strikes.held_s(replica), 1),
        )

    def _clone(self) -> CloneProgress | None:
        if self.condition.state is not AgentState.CLONING:
            return None
        here = self.missing.arrived
        return CloneProgress(
            percent=here.percent,
            bytes=here.size,
            of_bytes=here.size_all,
            parts=here.parts,
            of_parts=here.parts_all,
        )

    def _clock(self) -> ClockInfo:
        found = self.membership.clocks.check()
        offset_s = None if found.offset_s is None else round(found.offset_s, 3)
        return ClockInfo(
            found.off, offset_s, {name: round(ahead, 3) for name, ahead in found.ahead_s.items()}
        )

    def _waiting_for(self) -> BlockedRecord | None:
        blocked = self.applier.blocked
        return BlockedRecord(**asdict(blocked)) if blocked else None

    async def explain(self, tid: Tid) -> Explanation:
        """Return the history of a transaction.

        It has the transaction's state here, its outcome, where its parts are stored, and what it waits for.
        """
        outcome = outcome_answer(tid, await self.outcomes.outcome(tid, CLIENT))
        here = self.transactions.find(str(tid)) if self.transactions.outcome(str(tid)) else None
        csn = None if outcome.csn is None else Csn(outcome.csn)
        story = await asyncio.to_thread(story_of, self.settings.data_dir, str(tid), csn)
        replicas: dict[str, int | None] = {
            replica: self.membership.snapshot_of(replica, view)
            for replica, view in self.membership.view.items()
        }
        return Explanation(
            tid=str(tid),
            home=tid.home,
            snapshot_csn=tid.snapshot,
            outcome=outcome.outcome,
            csn=csn,
            asked=self.session.replica,
            here=None if here is None else here.describe(self.clock()),
            parts=[
                ExplainedPart(
                    row.part, row.table, row.path, row.rows, row.length, row.state, row.file, row.creation_csn
                )
                for row in self.reader.parts_of(str(tid))
            ],
            replicas=replicas,
            waiting_for=self._waiting_for(),
            time_ms=story.time_ms,
            label=story.label,
            batch=story.batch,
            carrier=story.carrier,
            holders=await self._holders(str(tid), csn),
            applied=sorted(name for name, at in replicas.items() if at and csn is not None and at >= csn),
            changes=[*story.changes],
        )

    async def _holders(self, tid: str, csn: Csn | None) -> list[str]:
        """Return the replicas that held the parts of a commit, if its record is kept."""
        if csn is None:
            return []
        try:
            found = await self.log.records(Csn(csn - 1), 1)
        except TidelockError:
            return []  # ZooKeeper does not answer, or the record was deleted
        return [
            name
            for record in found
            if record.csn == csn
            for one in record.record.tids
            if one.tid == tid
            for name in one.holders
        ]

    async def records(self, after: int | None, limit: int | None) -> list[LogRecord]:
        """Return records of the log after a CSN, read from ZooKeeper.

        Raises:
            BadRequestError: The limit exceeds the size of one answer.
        """
        most = self.settings.log_answer_records_max
        wanted = most if limit is None else limit
        if not 0 < wanted <= most:
            msg = f"limit={wanted} is outside 1..{most} (log_answer_records_max); ask for fewer records"
            raise BadRequestError(msg)
        return await self.log.records(CSN_NONE if after is None else Csn(max(after - 1, 0)), wanted)

    def metrics_text(self) -> bytes:
        """Return the metrics in the format of Prometheus."""
        return generate_latest(self.metrics.registry)
