"""Wires the parts of an agent that need its session. Pure wiring: what happens is decided in the parts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tidelock.csnlog.cluster.bootstrap import OwnSession
from tidelock.csnlog.cluster.members import Members
from tidelock.csnlog.log import CsnLog
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.replica_agent.api.operations import Condition, Operations
from tidelock.replica_agent.audit.auditor import Auditor
from tidelock.replica_agent.audit.checks import Cluster
from tidelock.replica_agent.compaction.compactor import Compactor
from tidelock.replica_agent.compaction.runner import Runner
from tidelock.replica_agent.compaction.survey import Survey
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.states import AgentState
from tidelock.replica_agent.lifecycle.local import Local
from tidelock.replica_agent.lifecycle.wiring_base import Base, Events, Shared, make_base
from tidelock.replica_agent.replicas.catalog_port import ReplicaCatalogPort
from tidelock.replica_agent.replicas.homes import Homes
from tidelock.replica_agent.replicas.receiver import PushReceiver
from tidelock.replica_agent.snapshots.change_feed import ChangeFeed
from tidelock.replica_agent.snapshots.garbage_collection import newest_before
from tidelock.replica_agent.snapshots.horizon import HorizonMover
from tidelock.replica_agent.snapshots.implicit_pins import ImplicitPins
from tidelock.replica_agent.snapshots.pinned import Snapshots
from tidelock.replica_agent.sql.pool import SqlPool
from tidelock.replica_agent.transactions.ending.commit import Commits
from tidelock.replica_agent.transactions.ending.copies import CopyMaker
from tidelock.replica_agent.transactions.ending.labels import Labels
from tidelock.replica_agent.transactions.ending.validation import Validation
from tidelock.replica_agent.transactions.outcomes.resolver import LocalOutcomes, OutcomeResolver
from tidelock.replica_agent.transactions.outcomes.rules import AUDIT, AUDIT_UNDECIDED, LOCK
from tidelock.replica_agent.transactions.statements.additions import Additions
from tidelock.replica_agent.transactions.statements.back_pressure import BackPressure
from tidelock.replica_agent.transactions.statements.derived import DerivedTables
from tidelock.replica_agent.transactions.statements.inserts import Inserts
from tidelock.replica_agent.transactions.statements.mutations import Mutations
from tidelock.replica_agent.transactions.statements.removals import Removals
from tidelock.replica_agent.transactions.statements.unique import UniqueKeys
from tidelock.replica_agent.uploads.eager_replication import EagerReplication
from tidelock.replica_agent.uploads.grants import UploadGrants
from tidelock.replica_agent.uploads.peer_uploads import PeerUploads
from tidelock.replica_agent.uploads.receiving import UploadReceiver
from tidelock.replica_agent.uploads.redirect import UploadRedirector
from tidelock.replica_agent.uploads.targets import UploadTargets
from tidelock.replica_agent.uploads.token_issuer import TokenIssuer
from tidelock.replica_agent.uploads.tokens import key_of
from tidelock.replica_agent.uploads.uploads import Uploads
from tidelock.replication.apply import Applier
from tidelock.replication.core.lock_rules import LockLimits
from tidelock.replication.fetch import Fetcher
from tidelock.replication.locks.removal_locks import Locks
from tidelock.replication.push import Pusher


@dataclass(frozen=True, slots=True)
class Machinery:
    """The parts that run; clients and peers reach them through ``operations``."""

    ledger: ReplicaCatalogPort
    fetcher: Fetcher
    applier: Applier
    pusher: Pusher
    members: Members
    copies: CopyMaker
    log: CsnLog
    compactor: Compactor
    early: EagerReplication
    operations: Operations


def assemble(
    local: Local,
    store: ZkStore,
    session: OwnSession,
    *,
    events: Events,
    condition: Condition,
    metrics: Metrics,
    stack: AsyncExitStack,
) -> Machinery:
    """Make all parts; none of them runs yet. ``stack`` closes them."""
    base = make_base(local, store, session, events, metrics, stack)
    shared, settings = base.shared, local.settings
    inserts = _inserts(shared, base.pusher, stack)
    homes = _homes(base)
    outcomes = _outcomes(base, homes)
    locks = _locks(shared, store, outcomes, homes)
    removals = _removals(shared, inserts, locks)
    labels = Labels(shared.log, local.catalog.reader, local.waiters, settings)
    commits = _commits(shared, base.copies, removals, labels)
    sql = SqlPool(settings, settings.data_dir)
    stack.push_async_callback(sql.close)
    compactor = _compactor(shared, inserts, commits, locks, sql, condition, events)
    stack.push_async_callback(compactor.close)
    mutations = _mutations(shared, inserts, removals, locks, sql)
    derived = DerivedTables(settings, inserts, sql)
    inserts.adding = Additions(shared.transactions, inserts, mutations, derived).add
    history, snapshots = _history(shared, store, base.members), _snapshots(shared, store)
    read_pins = _read_pins(shared, snapshots, history, stack)
    writes, spread, foreign, early = _uploads(base, inserts, removals, stack)
    operations = Operations(
        settings=settings,
        replica=session.replica,
        session=session,
        clock=time.monotonic,
        condition=condition,
        metrics=metrics,
        catalog=local.catalog,
        waiters=local.waiters,
        log=shared.log,
        membership=shared.membership,
        transactions=shared.transactions,
        inserts=inserts,
        locks=locks,
        removals=removals,
        mutations=mutations,
        derived=derived,
        writes=writes,
        spread=spread,
        foreign=foreign,
        commits=commits,
        outcomes=outcomes,
        labels=labels,
        snapshots=snapshots,
        read_pins=read_pins,
        changes=_changes(shared, snapshots, read_pins, lambda: operations),
        history=history,
        auditor=_auditor(shared, store, locks, snapshots, events, outcomes),
        acceptor=_acceptor(shared, base.fetcher, foreign, events),
        applier=base.applier,
        sql=sql,
        compactor=compactor,
        damaged=events.corrupt,
    )
    return _machinery(base, compactor, early, operations)


def _machinery(
    base: Base, compactor: Compactor, early: EagerReplication, operations: Operations
) -> Machinery:
    return Machinery(
        base.ledger,
        base.fetcher,
        base.applier,
        base.pusher,
        base.members,
        base.copies,
        base.shared.log,
        compactor,
        early,
        operations,
    )


def _inserts(shared: Shared, pusher: Pusher, stack: AsyncExitStack) -> Inserts:
    inserts = Inserts(
        settings=shared.local.settings,
        catalog=shared.local.catalog,
        files=shared.local.files,
        stager=shared.stager,
        numbers=shared.numbers,
        transactions=shared.transactions,
        metrics=shared.metrics,
        pressure=BackPressure(shared.local.settings, shared.local.counts, shared.metrics),
        reached=lambda: shared.local.waiters.reached,
        hint=lambda tx, parts: pusher.hint(tx.tid, parts),
    )
    stack.callback(inserts.close)
    return inserts


def _uploads(
    base: Base, inserts: Inserts, removals: Removals, stack: AsyncExitStack
) -> tuple[Uploads, UploadRedirector, PeerUploads, EagerReplication]:
    """Make what takes files: for the own transactions, here and elsewhere, and for those of others."""
    shared, local, settings = base.shared, base.shared.local, base.shared.local.settings
    key = key_of(settings.secret, shared.session.cluster.cluster_id, secrets.token_bytes(32))
    grants = UploadGrants(
        key,
        shared=bool(settings.secret),
        cluster=shared.session.cluster.cluster_id,
        replica=shared.session.replica,
    )
    early = EagerReplication(
        local.catalog, local.files, base.pusher, base.fetcher, patience_s=settings.commit_timeout_s
    )
    receiver = UploadReceiver(settings.uploads_max)
    stack.callback(receiver.close)
    writes = Uploads(inserts, removals, _passes(shared, key), early, receiver)
    spread = UploadRedirector(
        settings=settings,
        home=shared.session.replica,
        inserts=inserts,
        writes=writes,
        early=early,
        grants=grants,
        targets=UploadTargets(settings, shared.membership, base.client, time.monotonic),
        wall_s=time.time,
    )
    foreign = PeerUploads(
        replica=shared.session.replica,
        catalog=local.catalog,
        files=local.files,
        client=base.client,
        grants=grants,
        peers=shared.membership.peers,
        retry_wait_max_s=settings.retry_wait_max_s,
        receiver=receiver,
        taken=shared.metrics.uploads.labels("other").inc,
    )
    return writes, spread, foreign, early


def _passes(shared: Shared, key: bytes) -> TokenIssuer:
    settings, cluster = shared.local.settings, shared.session.cluster.cluster_id
    return TokenIssuer(
        settings=settings,
        key=key,
        cluster=cluster,
        replica=shared.session.replica,
        transactions=shared.transactions,
        member=shared.local.member,
        wall_s=time.time,
    )


def _commits(shared: Shared, copies: CopyMaker, removals: Removals, labels: Labels) -> Commits:
    return Commits(
        replica=shared.session.replica,
        settings=shared.local.settings,
        transactions=shared.transactions,
        catalog=shared.local.catalog,
        files=shared.local.files,
        numbers=shared.numbers,
        copies=copies,
        removals=removals,
        validation=Validation(shared.local.catalog.reader, shared.log, shared.local.waiters),
        labels=labels,
        log=shared.log,
        waiters=shared.local.waiters,
        metrics=shared.metrics,
        lagging=shared.membership.wait_for_lagging,
        applied_on=shared.membership.wait_applied,
        clock=time.monotonic,
    )


def _compactor(
    shared: Shared,
    inserts: Inserts,
    commits: Commits,
    locks: Locks,
    sql: SqlPool,
    condition: Condition,
    events: Events,
) -> Compactor:
    local = shared.local

    def serving() -> bool:
        return condition.state is AgentState.SERVING

    survey = Survey(
        settings=local.settings,
        reader=local.catalog.reader,
        inserts=inserts,
        counts=local.counts,
        waiters=local.waiters,
        heeded=lambda: {*shared.transactions.long_snapshots(), *shared.membership.open_snapshots()},
        locked=locks.locked_parts,
        clock=time.monotonic,
        wall_ms=lambda: int(time.time() * 1000),
    )
    runner = Runner(
        settings=local.settings,
        reader=local.catalog.reader,
        transactions=shared.transactions,
        inserts=inserts,
        commits=commits,
        sql=sql,
        waiters=local.waiters,
        serving=serving,
    )
    return Compactor(
        replica=shared.session.replica,
        settings=local.settings,
        survey=survey,
        runner=runner,
        counts=local.counts,
        metrics=shared.metrics,
        members=shared.membership.serving,
        serving=serving,
        damaged=events.corrupt,
        clock=time.monotonic,
    )


def _mutations(shared: Shared, inserts: Inserts, removals: Removals, locks: Locks, sql: SqlPool) -> Mutations:
    local, transactions = shared.local, shared.transactions
    return Mutations(
        settings=local.settings,
        catalog=local.catalog,
        files=local.files,
        transactions=transactions,
        inserts=inserts,
        removals=removals,
        keys=UniqueKeys(local.settings, local.catalog.reader, transactions, locks),
        sql=sql,
    )


def _removals(shared: Shared, inserts: Inserts, locks: Locks) -> Removals:
    return Removals(
        settings=shared.local.settings,
        catalog=shared.local.catalog,
        files=shared.local.files,
        transactions=shared.transactions,
        inserts=inserts,
        locks=locks,
        waiters=shared.local.waiters,
    )


def _homes(base: Base) -> Homes:
    shared = base.shared
    return Homes(
        replica=shared.session.replica,
        membership=shared.membership,
        client=base.client,
        log=shared.log,
        fence_timeout_s=shared.local.settings.fence_timeout_s,
    )


def _outcomes(base: Base, homes: Homes) -> OutcomeResolver:
    shared, replica = base.shared, base.shared.session.replica
    local = LocalOutcomes(
        replica=replica,
        boot=shared.session.boot,
        transactions=shared.transactions,
        reader=shared.local.catalog.reader,
        taken=base.applier.taken,
    )
    return OutcomeResolver(replica=replica, local=local, log=shared.log, homes=homes)


def _locks(shared: Shared, store: ZkStore, outcomes: OutcomeResolver, homes: Homes) -> Locks:
    settings = shared.local.settings
    return Locks(
        replica=shared.session.replica,
        boot=shared.session.boot,
        store=store,
        fenced=shared.log.fenced,
        outcome=lambda tid: outcomes.outcome(tid, LOCK),
        fence_home=homes.fence_present,
        silent=homes.silent,
        clock=time.monotonic,
        limits=LockLimits(
            locks_max=settings.locks_max,
            table_locks_max=settings.table_locks_max,
            multi_bytes_max=settings.multi_bytes_max,
            compaction_lock_wait_s=settings.compaction_lock_wait_s,
            connect_wait_s=settings.commit_timeout_s,
            scan_interval_s=settings.clean_interval_s,
        ),
    )


def _auditor(
    shared: Shared,
    store: ZkStore,
    locks: Locks,
    snapshots: Snapshots,
    events: Events,
    outcomes: OutcomeResolver,
) -> Auditor:
    local, settings = shared.local, shared.local.settings
    cluster = Cluster(
        replica=shared.session.replica,
        store=store,
        barrier=shared.log.barrier,
        applied=lambda: local.waiters.reached,
        wait=lambda csn: local.waiters.wait(csn, settings.wait_bound_s),
        outcome=lambda tid: outcomes.outcome(tid, AUDIT),
        undecided_outcome=lambda tid: outcomes.outcome(tid, AUDIT_UNDECIDED),
        locks=locks.listed,
        members=lambda: {replica: found.alive for replica, found in shared.membership.view.items()},
        own_pins=snapshots.ids,
        now_ms=lambda: int(time.time() * 1000),
        labels_kept_s=settings.outcome_retention_s - settings.clean_interval_s,
        stream_labels_kept_s=settings.stream_label_retention_s - settings.clean_interval_s,
    )
    return Auditor(
        settings,
        files=local.files,
        log=shared.log,
        cluster=cluster,
        metrics=shared.metrics,
        damaged=events.corrupt,
    )


def _snapshots(shared: Shared, store: ZkStore) -> Snapshots:
    return Snapshots(
        replica=shared.session.replica,
        boot=shared.session.boot,
        copies=shared.session.cluster.copies,
        settings=shared.local.settings,
        store=store,
        log=shared.log,
        reader=shared.local.catalog.reader,
        waiters=shared.local.waiters,
        peers=shared.membership.ask,
        clock=time.monotonic,
    )


def _history(shared: Shared, store: ZkStore, members: Members) -> HorizonMover:
    reader = shared.local.catalog.reader
    return HorizonMover(
        replica=shared.session.replica,
        settings=shared.local.settings,
        store=store,
        log=shared.log,
        members=members.snapshot,
        retained=lambda kept_s: newest_before(reader, kept_s),
        clock=time.monotonic,
    )


def _read_pins(
    shared: Shared, snapshots: Snapshots, history: HorizonMover, stack: AsyncExitStack
) -> ImplicitPins:
    settings = shared.local.settings
    read_pins = ImplicitPins(
        snapshots,
        ttl_s=settings.unpinned_ttl_s,
        most=settings.unpinned_max,
        pinned=history.pinned,
        clock=time.monotonic,
    )
    stack.push_async_callback(read_pins.close)
    return read_pins


def _changes(
    shared: Shared, snapshots: Snapshots, read_pins: ImplicitPins, operations: Callable[[], Operations]
) -> ChangeFeed:
    """``operations``, of which it is a part, is asked for when it is asked."""
    return ChangeFeed(
        settings=shared.local.settings,
        waiters=shared.local.waiters,
        snapshots=snapshots,
        read_pins=read_pins,
        require=lambda action: operations().require(action),
    )


def _acceptor(shared: Shared, fetcher: Fetcher, foreign: PeerUploads, events: Events) -> PushReceiver:
    return PushReceiver(
        replica=shared.session.replica,
        disk=shared.session.disk,
        boot=shared.session.boot,
        cluster_id=shared.session.cluster.cluster_id,
        catalog=shared.local.catalog,
        files=shared.local.files,
        stager=shared.stager,
        fetcher=fetcher,
        cut=foreign.cut,
        waiters=shared.local.waiters,
        arrived=events.part_held,
    )
