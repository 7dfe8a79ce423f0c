"""Wires the parts that change no row: snapshots and their horizon, compaction, the audit. Pure wiring."""

from __future__ import annotations

import time
from functools import partial

import msgspec

from tidelock.csnlog.core.ids import Csn
from tidelock.replica_agent.audit.auditor import Auditor
from tidelock.replica_agent.audit.checks import AuditedAgent
from tidelock.replica_agent.compaction.compactor import Compactor
from tidelock.replica_agent.compaction.runner import Runner
from tidelock.replica_agent.compaction.survey import Survey
from tidelock.replica_agent.config.states import AgentState
from tidelock.replica_agent.lifecycle.means import Means
from tidelock.replica_agent.lifecycle.replication_parts import ReplicationParts
from tidelock.replica_agent.lifecycle.transaction_parts import TransactionParts
from tidelock.replica_agent.snapshots.change_feed import ChangeFeed
from tidelock.replica_agent.snapshots.horizon import HorizonMover
from tidelock.replica_agent.snapshots.implicit_pins import ImplicitPins
from tidelock.replica_agent.snapshots.pinned import Snapshots
from tidelock.replica_agent.transactions.outcomes.rules import AUDIT, AUDIT_UNDECIDED


class SnapshotParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that keep old CSNs readable, and release them."""

    pinned: Snapshots
    horizon: HorizonMover
    implicit_pins: ImplicitPins
    changes: ChangeFeed


def make_snapshots(means: Means, replication: ReplicationParts) -> SnapshotParts:
    """Make these parts; they do not run yet."""
    settings, waiters = means.settings, means.local.waiters
    pinned = Snapshots(
        replica=means.replica,
        boot=means.session.boot,
        copies=lambda: replication.membership.copies,
        settings=settings,
        store=means.store,
        log=replication.log,
        reader=means.reader,
        waiters=waiters,
        peers=replication.membership.ask,
        clock=time.monotonic,
        clocks=replication.clocks,
    )
    horizon = HorizonMover(
        replica=means.replica,
        settings=settings,
        store=means.store,
        log=replication.log,
        members=replication.members.snapshot,
        tags=means.reader.tag_csns,
        retained=replication.retention.newest_before,
        records_kept=replication.strikes.records_to_keep,
        clock=time.monotonic,
    )
    implicit_pins = ImplicitPins(
        pinned,
        ttl_s=settings.unpinned_ttl_s,
        most=settings.unpinned_max,
        pinned=horizon.pinned,
        clock=time.monotonic,
    )
    means.stack.push_async_callback(implicit_pins.close)
    changes = ChangeFeed(
        settings=settings,
        condition=means.condition,
        waiters=waiters,
        tables=means.local.tables,
        snapshots=pinned,
        implicit_pins=implicit_pins,
    )
    return SnapshotParts(pinned=pinned, horizon=horizon, implicit_pins=implicit_pins, changes=changes)


def make_compactor(means: Means, replication: ReplicationParts, transactions: TransactionParts) -> Compactor:
    """Make the compactor, which merges parts; ``tick`` lets it work."""
    local, settings, membership = means.local, means.settings, replication.membership

    def long_snapshots() -> set[Csn]:
        return {*transactions.registry.long_snapshots(), *membership.open_snapshots()}

    def serving() -> bool:
        return means.condition.state is AgentState.SERVING

    survey = Survey(
        settings=settings,
        reader=means.reader,
        tables=local.tables,
        counts=local.counts,
        waiters=local.waiters,
        long_snapshots=long_snapshots,
        locked=transactions.locks.locked_parts,
        clock=time.monotonic,
        now_ms=replication.retention.log_ms,
    )
    runner = Runner(
        settings=settings,
        reader=means.reader,
        transactions=transactions.registry,
        staging=transactions.inserts.staging,
        commits=transactions.commits,
        sql=transactions.sql,
        waiters=local.waiters,
        condition=means.condition,
        clock=time.monotonic,
    )
    compactor = Compactor(
        replica=means.replica,
        settings=settings,
        switches=means.switches,
        survey=survey,
        runner=runner,
        counts=local.counts,
        metrics=means.metrics,
        members=membership.serving,
        serving=serving,
        damaged=means.events.corrupt,
        clock=time.monotonic,
    )
    means.stack.push_async_callback(compactor.close)
    return compactor


def make_auditor(
    means: Means, replication: ReplicationParts, transactions: TransactionParts, snapshots: SnapshotParts
) -> Auditor:
    """Make the auditor, which compares this replica with itself and with the log."""
    settings, waiters = means.settings, means.local.waiters
    cluster = AuditedAgent(
        replica=means.replica,
        store=means.store,
        barrier=replication.log.barrier,
        applied=lambda: waiters.reached,
        wait=partial(waiters.wait, timeout_s=settings.wait_bound_s),
        outcome=partial(transactions.outcomes.outcome, policy=AUDIT),
        undecided_outcome=partial(transactions.outcomes.outcome, policy=AUDIT_UNDECIDED),
        locks=transactions.locks.listed,
        members=lambda: {replica: found.alive for replica, found in replication.membership.view.items()},
        own_pins=snapshots.pinned.ids,
        now_ms=replication.retention.now_ms,
        labels_kept_s=settings.label_retention_s - settings.clean_interval_s,
        stream_labels_kept_s=settings.stream_label_retention_s - settings.clean_interval_s,
    )
    return Auditor(
        settings,
        files=means.local.files,
        log=replication.log,
        cluster=cluster,
        metrics=means.metrics,
        damaged=means.events.corrupt,
    )
