"""Wires the parts of an agent that need its session. Pure wiring: what happens is decided in the parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

from tidelock.csnlog.bootstrap import OwnSession
from tidelock.csnlog.ids import PartId, ReplicaId
from tidelock.csnlog.log import CsnLog, LogLimits, LogState
from tidelock.csnlog.members import Members
from tidelock.csnlog.model import LogRecord
from tidelock.csnlog.zk import ZkStore
from tidelock.replica_agent.acceptor import Acceptor
from tidelock.replica_agent.additions import Additions
from tidelock.replica_agent.audit.auditor import Auditor
from tidelock.replica_agent.audit.checks import Cluster
from tidelock.replica_agent.back_pressure import BackPressure
from tidelock.replica_agent.collection import newest_before
from tidelock.replica_agent.commit import Commits
from tidelock.replica_agent.compaction.compactor import Compactor
from tidelock.replica_agent.compaction.runner import Runner
from tidelock.replica_agent.compaction.survey import Survey
from tidelock.replica_agent.copies import CopyMaker
from tidelock.replica_agent.derived import DerivedTables
from tidelock.replica_agent.history import History
from tidelock.replica_agent.inserts import Inserts
from tidelock.replica_agent.ledger import CatalogLedger
from tidelock.replica_agent.local import Local
from tidelock.replica_agent.membership import Membership
from tidelock.replica_agent.metrics import Metrics
from tidelock.replica_agent.mutations import Mutations
from tidelock.replica_agent.operations import Condition, Operations
from tidelock.replica_agent.read_pins import ReadPins
from tidelock.replica_agent.removals import Removals
from tidelock.replica_agent.settings import AgentSettings
from tidelock.replica_agent.snapshots import Snapshots
from tidelock.replica_agent.sql.pool import SqlPool
from tidelock.replica_agent.staging import PartNumbers, Stager
from tidelock.replica_agent.state import AgentState
from tidelock.replica_agent.transactions import Transactions
from tidelock.replica_agent.unique import UniqueKeys
from tidelock.replica_agent.validation import Validation
from tidelock.replication.apply import Applier
from tidelock.replication.core import Copies
from tidelock.replication.fetch import Fetcher
from tidelock.replication.lock_rules import LockLimits
from tidelock.replication.locks import Locks
from tidelock.replication.model import Held, ResolvedRecord
from tidelock.replication.peers import PeerClient
from tidelock.replication.push import Pusher


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


@dataclass(frozen=True, slots=True)
class Machinery:
    """The parts that run; clients and peers reach them through ``operations``."""

    ledger: CatalogLedger
    fetcher: Fetcher
    applier: Applier
    pusher: Pusher
    members: Members
    copies: CopyMaker
    log: CsnLog
    compactor: Compactor
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
    settings, replica = local.settings, session.replica
    numbers = PartNumbers(replica, session.boot)
    stager = Stager(local.catalog, local.files, numbers, batch_bytes_max=settings.push_bytes_max)
    ledger = CatalogLedger(local.catalog, local.files, stager, metrics)
    client = PeerClient(
        secret=settings.secret, connections=settings.peer_connections, timeout_s=settings.push_timeout_s
    )
    stack.push_async_callback(client.close)
    fetcher = _fetcher(local, ledger, client, events)
    stack.push_async_callback(fetcher.close)
    pusher = _pusher(settings, session, client, events)
    stack.push_async_callback(pusher.close)
    applier = _applier(local, ledger, fetcher, events)
    members = Members(store, refresh_s=settings.member_refresh_s)
    stack.push_async_callback(members.close)
    log = CsnLog(
        store,
        session=session,
        limits=_limits(settings, session),
        deliver=events.deliver,
        on_state=events.log_state,
    )
    stack.push_async_callback(log.close)
    membership = _membership(local, session, members, client)
    copies = CopyMaker(Copies(replica, session.cluster.copies, {}), stager, pusher)
    transactions = Transactions(replica, session.boot, settings, time.monotonic)
    shared = _Shared(local, session, metrics, numbers, stager, log, membership, transactions)
    inserts = _inserts(shared, pusher)
    stack.callback(inserts.close)
    locks = _locks(shared, store, lambda: operations)
    removals = Removals(
        settings=settings,
        catalog=local.catalog,
        files=local.files,
        transactions=transactions,
        inserts=inserts,
        locks=locks,
        waiters=local.waiters,
    )
    commits = _commits(shared, copies, removals)
    sql = SqlPool(settings, settings.data_dir)
    stack.push_async_callback(sql.close)
    compactor = _compactor(shared, inserts, commits, sql, condition, events)
    stack.push_async_callback(compactor.close)
    mutations = _mutations(shared, inserts, removals, locks, sql)
    derived = DerivedTables(settings, inserts, sql)
    inserts.adding = Additions(transactions, inserts, mutations, derived).add
    history = _history(shared, store, members)
    snapshots = _snapshots(shared, store)
    read_pins = _read_pins(shared, snapshots, history)
    stack.push_async_callback(read_pins.close)
    operations = Operations(
        settings=settings,
        replica=replica,
        session=session,
        clock=time.monotonic,
        condition=condition,
        metrics=metrics,
        catalog=local.catalog,
        waiters=local.waiters,
        log=log,
        client=client,
        membership=membership,
        transactions=transactions,
        inserts=inserts,
        locks=locks,
        removals=removals,
        mutations=mutations,
        derived=derived,
        commits=commits,
        snapshots=snapshots,
        read_pins=read_pins,
        history=history,
        auditor=_auditor(shared, store, locks, snapshots, events, lambda: operations),
        acceptor=_acceptor(shared, fetcher, events),
        applier=applier,
        sql=sql,
        compactor=compactor,
        damaged=events.corrupt,
    )
    return Machinery(ledger, fetcher, applier, pusher, members, copies, log, compactor, operations)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What several of the parts below need."""

    local: Local
    session: OwnSession
    metrics: Metrics
    numbers: PartNumbers
    stager: Stager
    log: CsnLog
    membership: Membership
    transactions: Transactions


def _membership(local: Local, session: OwnSession, members: Members, client: PeerClient) -> Membership:
    return Membership(
        replica=session.replica,
        copies=session.cluster.copies,
        epoch_limit=session.cluster.epoch_limit,
        settings=local.settings,
        members=members,
        client=client,
        waiters=local.waiters,
        clock=time.monotonic,
    )


def _inserts(shared: _Shared, pusher: Pusher) -> Inserts:
    return Inserts(
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


def _commits(shared: _Shared, copies: CopyMaker, removals: Removals) -> Commits:
    return Commits(
        replica=shared.session.replica,
        boot=shared.session.boot,
        settings=shared.local.settings,
        transactions=shared.transactions,
        catalog=shared.local.catalog,
        files=shared.local.files,
        numbers=shared.numbers,
        copies=copies,
        removals=removals,
        validation=Validation(shared.local.catalog.reader, shared.log, shared.local.waiters),
        log=shared.log,
        waiters=shared.local.waiters,
        metrics=shared.metrics,
        lagging=shared.membership.wait_for_lagging,
        applied_on=shared.membership.wait_applied,
        clock=time.monotonic,
    )


def _compactor(
    shared: _Shared, inserts: Inserts, commits: Commits, sql: SqlPool, condition: Condition, events: Events
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


def _mutations(
    shared: _Shared, inserts: Inserts, removals: Removals, locks: Locks, sql: SqlPool
) -> Mutations:
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
        waiters=local.waiters,
    )


def _locks(shared: _Shared, store: ZkStore, operations: Callable[[], Operations]) -> Locks:
    """``operations``, which needs the locks itself, is asked for when somebody is met."""
    settings = shared.local.settings
    return Locks(
        replica=shared.session.replica,
        boot=shared.session.boot,
        store=store,
        fenced=shared.log.fenced,
        outcome=lambda tid: operations().lock_holder(tid),
        fence_home=lambda home: operations().fence_home(home),
        silent=lambda: operations().silent_homes(),
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
    shared: _Shared,
    store: ZkStore,
    locks: Locks,
    snapshots: Snapshots,
    events: Events,
    operations: Callable[[], Operations],
) -> Auditor:
    """``operations``, of which it is a part, is asked for when it runs."""
    local, settings = shared.local, shared.local.settings
    cluster = Cluster(
        replica=shared.session.replica,
        store=store,
        barrier=shared.log.barrier,
        applied=lambda: local.waiters.reached,
        wait=lambda csn: local.waiters.wait(csn, settings.wait_bound_s),
        outcome=lambda tid: operations().look_up(tid),
        undecided_outcome=lambda tid: operations().look_up(tid, held=True),
        locks=locks.listed,
        members=lambda: {replica: found.alive for replica, found in shared.membership.view.items()},
        own_pins=snapshots.ids,
        now_ms=lambda: int(time.time() * 1000),
        labels_kept_s=settings.outcome_retention_s - settings.clean_interval_s,
    )
    return Auditor(
        settings,
        files=local.files,
        log=shared.log,
        cluster=cluster,
        metrics=shared.metrics,
        damaged=events.corrupt,
    )


def _snapshots(shared: _Shared, store: ZkStore) -> Snapshots:
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


def _history(shared: _Shared, store: ZkStore, members: Members) -> History:
    reader = shared.local.catalog.reader
    return History(
        replica=shared.session.replica,
        settings=shared.local.settings,
        store=store,
        log=shared.log,
        members=members.snapshot,
        retained=lambda kept_s: newest_before(reader, kept_s),
        clock=time.monotonic,
    )


def _read_pins(shared: _Shared, snapshots: Snapshots, history: History) -> ReadPins:
    settings = shared.local.settings
    return ReadPins(
        snapshots,
        ttl_s=settings.unpinned_ttl_s,
        most=settings.unpinned_max,
        pinned=history.pinned,
        clock=time.monotonic,
    )


def _acceptor(shared: _Shared, fetcher: Fetcher, events: Events) -> Acceptor:
    return Acceptor(
        replica=shared.session.replica,
        disk=shared.session.disk,
        boot=shared.session.boot,
        cluster_id=shared.session.cluster.cluster_id,
        catalog=shared.local.catalog,
        files=shared.local.files,
        stager=shared.stager,
        fetcher=fetcher,
        waiters=shared.local.waiters,
        arrived=events.part_held,
        inline_bytes_max=shared.local.settings.inline_part_bytes_max,
    )


def _fetcher(local: Local, ledger: CatalogLedger, client: PeerClient, events: Events) -> Fetcher:
    settings = local.settings
    return Fetcher(
        client,
        local.files,
        ledger,
        replica=ReplicaId(settings.replica),
        on_held=events.part_held,
        on_wrong_bytes=events.wrong_bytes,
        range_bytes=settings.fetch_range_bytes,
        small_bytes_max=settings.inline_part_bytes_max,
        concurrency=settings.fetch_concurrency,
        small_concurrency=settings.fetch_small_concurrency,
        retry_wait_max_s=settings.retry_wait_max_s,
        grace_s=settings.fetch_grace_s,
        early_max=settings.fetch_early_max,
    )


def _applier(local: Local, ledger: CatalogLedger, fetcher: Fetcher, events: Events) -> Applier:
    return Applier(
        ledger,
        fetcher,
        applied=local.waiters.reached,
        time_ms=local.catalog.reader.meta("time_ms"),
        apply_records_max=local.settings.apply_records_max,
        ahead_records=local.settings.apply_ahead_records,
        missing_parts_max=local.settings.apply_missing_parts_max,
        retry_wait_max_s=local.settings.retry_wait_max_s,
        on_applied=events.applied,
    )


def _pusher(settings: AgentSettings, session: OwnSession, client: PeerClient, events: Events) -> Pusher:
    return Pusher(
        client,
        home=session.replica,
        boot=session.boot,
        cluster_id=session.cluster.cluster_id,
        on_held=events.acknowledged,
        push_bytes_max=settings.push_bytes_max,
        push_tids_max=settings.batch_tids_max,
        push_timeout_s=settings.push_timeout_s,
        retry_wait_max_s=settings.retry_wait_max_s,
        hints_max=settings.peer_hints_max,
    )


def _limits(settings: AgentSettings, session: OwnSession) -> LogLimits:
    return LogLimits(
        record_bytes_max=settings.record_bytes_max,
        multi_bytes_max=settings.multi_bytes_max,
        batch_tids_max=settings.batch_tids_max,
        queue_tids_max=settings.queue_tids_max,
        read_ahead=settings.read_ahead,
        epoch_limit=session.cluster.epoch_limit,
        relook_s=settings.member_refresh_s,
    )
