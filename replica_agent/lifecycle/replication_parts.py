"""Wires the log, and the parts that bring data here and to the peers. Pure wiring."""

from __future__ import annotations

import secrets
import time

import msgspec

from tidelock.csnlog.cluster.members import Members
from tidelock.csnlog.log import CsnLog, LogLimits
from tidelock.replica_agent.cloning.missing_parts import MissingParts
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.lifecycle.means import Means
from tidelock.replica_agent.replicas.catalog_port import ReplicaCatalogPort
from tidelock.replica_agent.replicas.held_parts import HeldParts
from tidelock.replica_agent.replicas.homes import Homes
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replica_agent.replicas.own_phase import OwnPhase
from tidelock.replica_agent.replicas.skips import SkipReader
from tidelock.replica_agent.replicas.strikes import Strikes
from tidelock.replica_agent.snapshots.retention_clock import RetentionClock
from tidelock.replica_agent.storage.pack_writer import PartNumbers, Stager
from tidelock.replica_agent.transactions.ending.copies import CopyMaker
from tidelock.replication.apply import Applier
from tidelock.replication.clocks import Clocks, uptime_s
from tidelock.replication.core.copies import Copies
from tidelock.replication.core.phase import PhaseWatch
from tidelock.replication.core.strike_rules import StrikeLimits
from tidelock.replication.fetch import Fetcher
from tidelock.replication.membership import MemberChanges
from tidelock.replication.peers import PeerClient
from tidelock.replication.push import Pusher

#: Longest time until a peer is told that the part that it asks for is being read, in seconds.
_READ_ANSWER_S = 2.0


class ReplicationParts(msgspec.Struct, frozen=True, kw_only=True):
    """The log, the other replicas, and the parts that bring data here and to them."""

    numbers: PartNumbers
    stager: Stager
    catalog_port: ReplicaCatalogPort
    client: PeerClient
    fetcher: Fetcher
    missing: MissingParts
    pusher: Pusher
    applier: Applier
    own_phase: OwnPhase
    held_parts: HeldParts
    skips: SkipReader
    log: CsnLog
    members: Members
    membership: Membership
    homes: Homes
    copies: CopyMaker
    clocks: Clocks
    retention: RetentionClock
    changes: MemberChanges
    strikes: Strikes


def make_replication(means: Means) -> ReplicationParts:
    """Make these parts; they do not run yet."""
    local, settings, session, stack = means.local, means.settings, means.session, means.stack
    numbers = PartNumbers(means.replica, session.boot)
    stager = Stager(
        catalog=local.catalog, files=local.files, numbers=numbers, batch_bytes_max=settings.push_bytes_max
    )
    port = ReplicaCatalogPort(local.catalog, local.files, stager, means.metrics)
    client = PeerClient(
        secret=settings.secret, connections=settings.peer_connections, timeout_s=settings.push_timeout_s
    )
    stack.push_async_callback(client.close)
    fetcher = _fetcher(means, port, client)
    stack.push_async_callback(fetcher.close)
    pusher = _pusher(means, client)
    stack.push_async_callback(pusher.close)
    members = Members(means.store, refresh_s=settings.member_refresh_s)
    stack.push_async_callback(members.close)
    clocks = _clocks(settings)
    log = _log(means, clocks)
    stack.push_async_callback(log.close)
    membership = Membership(
        replica=means.replica,
        cluster=session.cluster,
        settings=settings,
        members=members,
        client=client,
        waiters=local.waiters,
        clock=time.monotonic,
        clocks=clocks,
    )
    changes = _changes(means, log)
    held_parts = _held_parts(means, port)
    stack.push_async_callback(held_parts.close)
    applier = _applier(means, port, fetcher)
    return ReplicationParts(
        changes=changes,
        strikes=_strikes(means, log, membership, changes),
        numbers=numbers,
        stager=stager,
        catalog_port=port,
        client=client,
        fetcher=fetcher,
        missing=MissingParts(catalog=local.catalog, fetcher=fetcher, ahead=settings.clone_parts_ahead),
        pusher=pusher,
        applier=applier,
        own_phase=_own_phase(means, applier, membership),
        held_parts=held_parts,
        skips=_skips(means),
        log=log,
        members=members,
        membership=membership,
        homes=_homes(means, log, membership, client),
        copies=CopyMaker(
            machine=Copies(means.replica, membership.rules(), thorough=settings.check_invariants),
            stager=stager,
            pusher=pusher,
            fetcher=fetcher,
            on_broken=means.events.broken,
        ),
        clocks=clocks,
        retention=RetentionClock(means.reader, time.monotonic, clocks.now_ms),
    )


def _homes(means: Means, log: CsnLog, membership: Membership, client: PeerClient) -> Homes:
    return Homes(
        replica=means.replica,
        membership=membership,
        client=client,
        log=log,
        fence_timeout_s=means.settings.fence_timeout_s,
        refused_timeout_s=means.settings.refused_timeout_s,
        clock=time.monotonic,
    )


def _held_parts(means: Means, port: ReplicaCatalogPort) -> HeldParts:
    answer_s = min(_READ_ANSWER_S, means.settings.push_timeout_s / 2)
    return HeldParts(port=port, answer_s=answer_s, damaged=means.events.corrupt)


def _skips(means: Means) -> SkipReader:
    events = means.events
    return SkipReader(
        store=means.store, catalog=means.local.catalog, held=events.part_held, clones=events.clones
    )


def _clocks(settings: AgentSettings) -> Clocks:
    return Clocks(
        wall=time.time,
        uptime=uptime_s,
        offset_max_s=settings.clock_offset_max_s,
        kept_s=3 * settings.clock_check_interval_s,
        server_kept_s=3 * max(settings.tick_interval_s, settings.clock_check_interval_s),
    )


def _changes(means: Means, log: CsnLog) -> MemberChanges:
    return MemberChanges(
        replica=means.replica,
        cluster=means.session.cluster,
        store=means.store,
        fenced=log.fenced,
        end=log.barrier,
        lag_max=means.settings.max_lag,
        patience_s=means.settings.commit_timeout_s,
        nonce=lambda: secrets.token_hex(16),
    )


def _strikes(means: Means, log: CsnLog, membership: Membership, changes: MemberChanges) -> Strikes:
    settings = means.settings
    return Strikes(
        replica=means.replica,
        store=means.store,
        log=log,
        membership=membership,
        changes=changes,
        limits=StrikeLimits(settings.strike_timeout_s, settings.max_records, settings.max_records_bytes),
        keep_records=settings.log_keep_records,
        keep_bytes=settings.log_keep_bytes,
        metrics=means.metrics,
        clock=time.monotonic,
    )


def _own_phase(means: Means, applier: Applier, membership: Membership) -> OwnPhase:
    return OwnPhase(
        applier=applier,
        room=means.local.files.room,
        membership=membership,
        watch=PhaseWatch(means.settings.blocked_after_s),
        metrics=means.metrics,
        condition=means.condition,
        clock=time.monotonic,
        wall_ms=lambda: time.time_ns() // 1_000_000,
    )


def _fetcher(means: Means, port: ReplicaCatalogPort, client: PeerClient) -> Fetcher:
    settings = means.settings
    return Fetcher(
        client=client,
        files=means.local.files,
        store=port,
        replica=means.replica,
        on_held=means.events.part_held,
        on_wrong_bytes=means.events.wrong_bytes,
        range_bytes=settings.fetch_range_bytes,
        small_bytes_max=settings.inline_part_bytes_max,
        concurrency=settings.fetch_concurrency,
        small_concurrency=settings.fetch_small_concurrency,
        retry_wait_max_s=settings.retry_wait_max_s,
        patience_s=settings.fetch_patience_s,
        patience_max_s=settings.push_timeout_s,
        grace_s=settings.fetch_grace_s,
        early_max=settings.fetch_early_max,
    )


def _applier(means: Means, port: ReplicaCatalogPort, fetcher: Fetcher) -> Applier:
    settings = means.settings
    return Applier(
        port,
        fetcher,
        applied=means.local.waiters.reached,
        time_ms=means.reader.meta("time_ms"),
        apply_records_max=settings.apply_records_max,
        ahead_records=settings.apply_ahead_records,
        missing_parts_max=settings.apply_missing_parts_max,
        retry_wait_max_s=settings.retry_wait_max_s,
        on_applied=means.events.applied,
        thorough=settings.check_invariants,
    )


def _pusher(means: Means, client: PeerClient) -> Pusher:
    settings = means.settings
    return Pusher(
        client=client,
        home=means.replica,
        boot=means.session.boot,
        cluster_id=means.session.cluster.cluster_id,
        on_held=means.events.acknowledged,
        push_bytes_max=settings.push_bytes_max,
        push_tids_max=settings.batch_tids_max,
        push_timeout_s=settings.push_timeout_s,
        retry_wait_max_s=settings.retry_wait_max_s,
        hints_max=settings.peer_hints_max,
    )


def _log(means: Means, clocks: Clocks) -> CsnLog:
    settings = means.settings
    limits = LogLimits(
        record_bytes_max=settings.record_bytes_max,
        multi_bytes_max=settings.multi_bytes_max,
        batch_tids_max=settings.batch_tids_max,
        queue_tids_max=settings.queue_tids_max,
        read_ahead=settings.read_ahead,
        epoch_limit=means.session.cluster.epoch_limit,
        recheck_s=settings.member_refresh_s,
        patience_s=settings.session_timeout_s,
    )
    return CsnLog(
        means.store,
        session=means.session,
        limits=limits,
        clocks=clocks,
        deliver=means.events.deliver,
        on_state=means.events.log_state,
        on_fence=means.events.fence_raised,
        thorough=settings.check_invariants,
    )
