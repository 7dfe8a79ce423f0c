"""Wires the log, and what brings parts here and to the peers: all that transactions stand on. Pure wiring."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

from tidelock.csnlog.cluster.bootstrap import OwnSession
from tidelock.csnlog.cluster.members import Members
from tidelock.csnlog.core.ids import PartId, ReplicaId
from tidelock.csnlog.core.machine import InvariantError
from tidelock.csnlog.core.model import LogRecord
from tidelock.csnlog.log import CsnLog, LogLimits, LogState
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.lifecycle.local import Local
from tidelock.replica_agent.replicas.catalog_port import ReplicaCatalogPort
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replica_agent.storage.pack_writer import PartNumbers, Stager
from tidelock.replica_agent.transactions.ending.copies import CopyMaker
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replication.apply import Applier
from tidelock.replication.core.copies import Copies
from tidelock.replication.core.model import Held, ResolvedRecord
from tidelock.replication.fetch import Fetcher
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

    def broken(self, error: InvariantError) -> None:
        """A state machine contradicts itself."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What several of the parts below need."""

    local: Local
    session: OwnSession
    metrics: Metrics
    numbers: PartNumbers
    stager: Stager
    log: CsnLog
    membership: Membership
    transactions: Transactions


@dataclass(frozen=True, slots=True)
class Base:
    """The log, and what brings parts here and to the peers."""

    shared: Shared
    ledger: ReplicaCatalogPort
    client: PeerClient
    fetcher: Fetcher
    pusher: Pusher
    applier: Applier
    members: Members
    copies: CopyMaker


def make_base(
    local: Local,
    store: ZkStore,
    session: OwnSession,
    events: Events,
    metrics: Metrics,
    stack: AsyncExitStack,
) -> Base:
    """Make them; none of them runs yet. ``stack`` closes them."""
    settings, replica = local.settings, session.replica
    numbers = PartNumbers(replica, session.boot)
    stager = Stager(local.catalog, local.files, numbers, batch_bytes_max=settings.push_bytes_max)
    ledger = ReplicaCatalogPort(local.catalog, local.files, stager, metrics)
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
        thorough=settings.check_invariants,
    )
    stack.push_async_callback(log.close)
    membership = _membership(local, session, members, client)
    counting = Copies(replica, session.cluster.copies, {}, thorough=settings.check_invariants)
    copies = CopyMaker(counting, stager, pusher, fetcher, on_broken=events.broken)
    transactions = Transactions(replica, session.boot, settings, time.monotonic)
    shared = Shared(local, session, metrics, numbers, stager, log, membership, transactions)
    return Base(shared, ledger, client, fetcher, pusher, applier, members, copies)


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


def _fetcher(local: Local, ledger: ReplicaCatalogPort, client: PeerClient, events: Events) -> Fetcher:
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


def _applier(local: Local, ledger: ReplicaCatalogPort, fetcher: Fetcher, events: Events) -> Applier:
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
        thorough=local.settings.check_invariants,
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
