"""Wires the parts of an agent that need its session, and its services. Pure wiring.

The layers, from the bottom: replication; transactions and snapshots; uploads, compaction and the audit; the
services. A part receives everything that it uses when it is made, and nothing later.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tidelock.replica_agent.cloning.source import ManifestSource
from tidelock.replica_agent.compaction.compactor import Compactor
from tidelock.replica_agent.lifecycle.landing_parts import LandingParts, make_landing
from tidelock.replica_agent.lifecycle.means import Means
from tidelock.replica_agent.lifecycle.replication_parts import ReplicationParts, make_replication
from tidelock.replica_agent.lifecycle.scrub_parts import make_comparison, make_scrubber
from tidelock.replica_agent.lifecycle.snapshot_parts import (
    SnapshotParts,
    make_auditor,
    make_compactor,
    make_snapshots,
)
from tidelock.replica_agent.lifecycle.transaction_parts import TransactionParts, make_transactions
from tidelock.replica_agent.lifecycle.upload_parts import UploadParts, make_uploads
from tidelock.replica_agent.replicas.receiver import PushReceiver
from tidelock.replica_agent.scrubbing.comparison import StateComparison
from tidelock.replica_agent.scrubbing.scrubber import Scrubber
from tidelock.replica_agent.services.administration import AdministrationService
from tidelock.replica_agent.services.bundle import Services
from tidelock.replica_agent.services.definitions import DefinitionService
from tidelock.replica_agent.services.failures import QueryFailures
from tidelock.replica_agent.services.history import HistoryService
from tidelock.replica_agent.services.live_state import LiveState
from tidelock.replica_agent.services.lost_parts import LostPartService
from tidelock.replica_agent.services.members import MembersService
from tidelock.replica_agent.services.peers import PeerService
from tidelock.replica_agent.services.points import PastPoints
from tidelock.replica_agent.services.reads import ReadService
from tidelock.replica_agent.services.status import StatusService
from tidelock.replica_agent.services.tags import TagService
from tidelock.replica_agent.services.transactions import TransactionService
from tidelock.replica_agent.services.uploads import UploadService
from tidelock.replica_agent.transactions.statements.restores import Restores
from tidelock.replica_agent.uploads.replacements import Replacements


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AgentParts:
    """The parts of a running agent; clients and peers reach them through ``services`` alone."""

    means: Means
    replication: ReplicationParts
    transactions: TransactionParts
    landing: LandingParts
    snapshots: SnapshotParts
    uploads: UploadParts
    compactor: Compactor
    receiver: PushReceiver
    manifests: ManifestSource
    scrubber: Scrubber
    comparison: StateComparison
    services: Services = field(init=False)

    def __post_init__(self) -> None:
        """Make the services, which stand on all other parts."""
        failures = QueryFailures(transactions=self.transactions.registry, damage=self.means.damage)
        status, tags = _status(self), _tags(self)
        points = PastPoints(snapshots=self.snapshots.pinned, tags=tags)
        live = LiveState(status=status, locks_here=self.transactions.locks, store=self.means.store)
        reads, peers = _reads(self, failures, live), _peers(self)
        self.services = Services(
            settings=self.means.settings,
            condition=self.means.condition,
            transactions=_transactions(self, failures, points),
            reads=reads,
            history=_history(self, reads),
            uploads=_uploads(self),
            peers=peers,
            administration=_administration(self, reads, peers),
            definitions=_definitions(self, points),
            members=MembersService(replica=self.means.replica, changes=self.replication.changes),
            status=status,
            tags=tags,
        )


def assemble(means: Means) -> AgentParts:
    """Make all parts; they do not run yet, and the stack of ``means`` closes them."""
    replication = make_replication(means)
    transactions = make_transactions(means, replication)
    manifests = ManifestSource(settings=means.settings, room=means.local.files.room, clock=time.monotonic)
    means.stack.push_async_callback(manifests.close)
    uploads = make_uploads(means, replication, transactions)
    return AgentParts(
        means=means,
        replication=replication,
        transactions=transactions,
        landing=make_landing(means, replication, transactions),
        snapshots=make_snapshots(means, replication),
        uploads=uploads,
        compactor=make_compactor(means, replication, transactions),
        receiver=PushReceiver(
            replica=means.replica,
            disk=means.session.disk,
            boot=means.session.boot,
            cluster_id=means.session.cluster.cluster_id,
            catalog=means.local.catalog,
            files=means.local.files,
            stager=replication.stager,
            fetcher=replication.fetcher,
            cut=uploads.peer_uploads.cut,
            waiters=means.local.waiters,
            arrived=means.events.part_held,
        ),
        manifests=manifests,
        scrubber=make_scrubber(means, replication),
        comparison=make_comparison(means, replication),
    )


def _transactions(parts: AgentParts, failures: QueryFailures, points: PastPoints) -> TransactionService:
    means, transactions, snapshots = parts.means, parts.transactions, parts.snapshots
    return TransactionService(
        settings=means.settings,
        condition=means.condition,
        clock=time.monotonic,
        log=parts.replication.log,
        waiters=means.local.waiters,
        snapshots=snapshots.pinned,
        transactions=transactions.registry,
        inserts=transactions.inserts,
        removals=transactions.removals,
        restores=Restores(removals=transactions.removals, tables=transactions.tables),
        points=points,
        mutations=transactions.inserts.mutations,
        landings=parts.landing.landings,
        commits=transactions.commits,
        labels=transactions.labels,
        outcomes=transactions.outcomes,
        reader=means.reader,
        skips=means.session.skips,
        failures=failures,
    )


def _reads(parts: AgentParts, failures: QueryFailures, live: LiveState) -> ReadService:
    means, transactions, snapshots = parts.means, parts.transactions, parts.snapshots
    return ReadService(
        condition=means.condition,
        waiters=means.local.waiters,
        reader=means.reader,
        tables=means.local.tables,
        snapshots=snapshots.pinned,
        implicit_pins=snapshots.implicit_pins,
        changes=snapshots.changes,
        transactions=transactions.registry,
        staging=transactions.inserts.staging,
        inserts=transactions.inserts,
        sql=transactions.sql,
        failures=failures,
        live=live,
    )


def _history(parts: AgentParts, reads: ReadService) -> HistoryService:
    return HistoryService(
        condition=parts.means.condition,
        reader=parts.means.reader,
        snapshots=parts.snapshots.pinned,
        membership=parts.replication.membership,
        reads=reads,
        data_dir=parts.means.settings.data_dir,
    )


def _uploads(parts: AgentParts) -> UploadService:
    uploads = parts.uploads
    return UploadService(
        condition=parts.means.condition,
        transactions=parts.transactions.registry,
        tokens=uploads.uploads.tokens,
        uploads=uploads.uploads,
        replacements=Replacements(uploads=uploads.uploads),
        redirector=uploads.redirector,
        peer_uploads=uploads.peer_uploads,
    )


def _peers(parts: AgentParts) -> PeerService:
    means = parts.means
    return PeerService(
        settings=means.settings,
        condition=means.condition,
        session=means.session,
        waiters=means.local.waiters,
        files=means.local.files,
        receiver=parts.receiver,
        held_parts=parts.replication.held_parts,
        redirector=parts.uploads.redirector,
        outcomes=parts.transactions.outcomes,
        manifests=parts.manifests,
        clocks=parts.replication.clocks,
        comparison=parts.comparison,
    )


def _administration(parts: AgentParts, reads: ReadService, peers: PeerService) -> AdministrationService:
    means, transactions, snapshots = parts.means, parts.transactions, parts.snapshots
    return AdministrationService(
        settings=means.settings,
        replica=means.replica,
        condition=means.condition,
        switches=means.switches,
        waiters=means.local.waiters,
        reader=means.reader,
        catalog=means.local.catalog,
        tables=means.local.tables,
        transactions=transactions.registry,
        reads=reads,
        snapshots=snapshots.pinned,
        horizon=snapshots.horizon,
        compactor=parts.compactor,
        auditor=make_auditor(means, parts.replication, transactions, snapshots),
        lost_parts=LostPartService(
            condition=means.condition,
            replica=means.replica,
            log=parts.replication.log,
            reader=means.reader,
            port=parts.replication.catalog_port,
            membership=parts.replication.membership,
            client=parts.replication.client,
            peers=peers,
            skips=parts.replication.skips,
            transactions=transactions.registry,
            commits=transactions.commits,
            wall_ms=lambda: time.time_ns() // 1_000_000,
        ),
    )


def _definitions(parts: AgentParts, points: PastPoints) -> DefinitionService:
    means, transactions = parts.means, parts.transactions
    return DefinitionService(
        settings=means.settings,
        condition=means.condition,
        log=parts.replication.log,
        waiters=means.local.waiters,
        statements=transactions.tables,
        points=points,
        transactions=transactions.registry,
        commits=transactions.commits,
        clock=time.monotonic,
    )


def _tags(parts: AgentParts) -> TagService:
    means, transactions = parts.means, parts.transactions
    return TagService(
        settings=means.settings,
        condition=means.condition,
        log=parts.replication.log,
        store=means.store,
        reader=means.reader,
        snapshots=parts.snapshots.pinned,
        waiters=means.local.waiters,
        transactions=transactions.registry,
        commits=transactions.commits,
        retained=parts.replication.retention.newest_before,
        clock=time.monotonic,
    )


def _status(parts: AgentParts) -> StatusService:
    means, replication, transactions = parts.means, parts.replication, parts.transactions
    return StatusService(
        settings=means.settings,
        condition=means.condition,
        switches=means.switches,
        session=means.session,
        clock=time.monotonic,
        metrics=means.metrics,
        reader=means.reader,
        waiters=means.local.waiters,
        log=replication.log,
        membership=replication.membership,
        strikes=replication.strikes,
        transactions=transactions.registry,
        outcomes=transactions.outcomes,
        applier=replication.applier,
        missing=replication.missing,
        horizon=parts.snapshots.horizon,
    )
