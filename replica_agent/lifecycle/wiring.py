"""Wires the parts of an agent that need its session, and its services. Pure wiring.

The layers, from the bottom: replication; transactions and history; uploads, compaction and the audit; the
services. A part receives everything that it uses when it is made, and nothing later.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tidelock.replica_agent.compaction.compactor import Compactor
from tidelock.replica_agent.lifecycle.history_parts import (
    HistoryParts,
    make_auditor,
    make_compactor,
    make_history,
)
from tidelock.replica_agent.lifecycle.means import Means
from tidelock.replica_agent.lifecycle.replication_parts import ReplicationParts, make_replication
from tidelock.replica_agent.lifecycle.transaction_parts import TransactionParts, make_transactions
from tidelock.replica_agent.lifecycle.upload_parts import UploadParts, make_uploads
from tidelock.replica_agent.replicas.receiver import PushReceiver
from tidelock.replica_agent.services.administration import AdministrationService
from tidelock.replica_agent.services.bundle import Services
from tidelock.replica_agent.services.failures import QueryFailures
from tidelock.replica_agent.services.peers import PeerService
from tidelock.replica_agent.services.reads import ReadService
from tidelock.replica_agent.services.status import StatusService
from tidelock.replica_agent.services.transactions import TransactionService
from tidelock.replica_agent.services.uploads import UploadService


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentParts:
    """The parts of a running agent; clients and peers reach them through ``services`` alone."""

    means: Means
    replication: ReplicationParts
    transactions: TransactionParts
    history: HistoryParts
    uploads: UploadParts
    compactor: Compactor
    receiver: PushReceiver
    services: Services


def assemble(means: Means) -> AgentParts:
    """Make all parts; they do not run yet, and the stack of ``means`` closes them."""
    replication = make_replication(means)
    transactions = make_transactions(means, replication)
    history = make_history(means, replication)
    uploads = make_uploads(means, replication, transactions)
    compactor = make_compactor(means, replication, transactions)
    receiver = PushReceiver(
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
    )
    failures = QueryFailures(transactions=transactions.registry, damaged=means.events.corrupt)
    reads = _reads(means, transactions, history, failures)
    services = Services(
        settings=means.settings,
        condition=means.condition,
        transactions=_transactions(means, replication, transactions, history, failures),
        reads=reads,
        uploads=_uploads(means, transactions, uploads),
        peers=_peers(means, transactions, uploads, receiver),
        administration=_administration(means, replication, transactions, history, compactor, reads),
        status=_status(means, replication, transactions, history),
    )
    return AgentParts(
        means=means,
        replication=replication,
        transactions=transactions,
        history=history,
        uploads=uploads,
        compactor=compactor,
        receiver=receiver,
        services=services,
    )


def _transactions(
    means: Means,
    replication: ReplicationParts,
    transactions: TransactionParts,
    history: HistoryParts,
    failures: QueryFailures,
) -> TransactionService:
    return TransactionService(
        settings=means.settings,
        condition=means.condition,
        clock=time.monotonic,
        log=replication.log,
        waiters=means.local.waiters,
        snapshots=history.snapshots,
        transactions=transactions.registry,
        inserts=transactions.inserts,
        removals=transactions.removals,
        mutations=transactions.inserts.mutations,
        commits=transactions.commits,
        labels=transactions.labels,
        outcomes=transactions.outcomes,
        failures=failures,
    )


def _reads(
    means: Means, transactions: TransactionParts, history: HistoryParts, failures: QueryFailures
) -> ReadService:
    return ReadService(
        condition=means.condition,
        waiters=means.local.waiters,
        reader=means.reader,
        snapshots=history.snapshots,
        implicit_pins=history.implicit_pins,
        changes=history.changes,
        transactions=transactions.registry,
        staging=transactions.inserts.staging,
        inserts=transactions.inserts,
        sql=transactions.sql,
        failures=failures,
    )


def _uploads(means: Means, transactions: TransactionParts, uploads: UploadParts) -> UploadService:
    return UploadService(
        condition=means.condition,
        transactions=transactions.registry,
        tokens=uploads.uploads.tokens,
        uploads=uploads.uploads,
        redirector=uploads.redirector,
        peer_uploads=uploads.peer_uploads,
    )


def _peers(
    means: Means, transactions: TransactionParts, uploads: UploadParts, receiver: PushReceiver
) -> PeerService:
    return PeerService(
        settings=means.settings,
        condition=means.condition,
        session=means.session,
        waiters=means.local.waiters,
        files=means.local.files,
        receiver=receiver,
        redirector=uploads.redirector,
        outcomes=transactions.outcomes,
    )


def _administration(
    means: Means,
    replication: ReplicationParts,
    transactions: TransactionParts,
    history: HistoryParts,
    compactor: Compactor,
    reads: ReadService,
) -> AdministrationService:
    return AdministrationService(
        settings=means.settings,
        replica=means.replica,
        condition=means.condition,
        waiters=means.local.waiters,
        reader=means.reader,
        tables=transactions.tables,
        derived=transactions.inserts.derived,
        transactions=transactions.registry,
        commits=transactions.commits,
        reads=reads,
        snapshots=history.snapshots,
        history=history.history,
        compactor=compactor,
        auditor=make_auditor(means, replication, transactions, history),
    )


def _status(
    means: Means, replication: ReplicationParts, transactions: TransactionParts, history: HistoryParts
) -> StatusService:
    return StatusService(
        settings=means.settings,
        condition=means.condition,
        session=means.session,
        clock=time.monotonic,
        metrics=means.metrics,
        reader=means.reader,
        waiters=means.local.waiters,
        log=replication.log,
        membership=replication.membership,
        transactions=transactions.registry,
        outcomes=transactions.outcomes,
        applier=replication.applier,
        horizon=history.history,
    )
