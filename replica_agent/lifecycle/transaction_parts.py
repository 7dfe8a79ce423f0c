"""Wires the parts that run this home's transactions: statements, endings, outcomes. Pure wiring."""

from __future__ import annotations

import time
from functools import partial

import msgspec

from tidelock.replica_agent.lifecycle.means import Means
from tidelock.replica_agent.lifecycle.replication_parts import ReplicationParts
from tidelock.replica_agent.sql.pool import SqlPool
from tidelock.replica_agent.transactions.ending.carriers import Carriers
from tidelock.replica_agent.transactions.ending.closing import TransactionCloser
from tidelock.replica_agent.transactions.ending.commit import AppliedCommits, Commits
from tidelock.replica_agent.transactions.ending.commit_batching import GroupCommitGate
from tidelock.replica_agent.transactions.ending.definition_order import DefinitionOrder
from tidelock.replica_agent.transactions.ending.labels import Labels
from tidelock.replica_agent.transactions.ending.proposals import ProposalBuilder
from tidelock.replica_agent.transactions.ending.settlement import Settlement
from tidelock.replica_agent.transactions.ending.validation import Validation
from tidelock.replica_agent.transactions.outcomes.resolver import LocalOutcomes, OutcomeResolver
from tidelock.replica_agent.transactions.outcomes.rules import LOCK
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.back_pressure import BackPressure
from tidelock.replica_agent.transactions.statements.definitions import TableStatements
from tidelock.replica_agent.transactions.statements.derived import DerivedTables
from tidelock.replica_agent.transactions.statements.insert import Inserts
from tidelock.replica_agent.transactions.statements.mutations import Mutations
from tidelock.replica_agent.transactions.statements.removals import Removals
from tidelock.replica_agent.transactions.statements.row_checks import RowChecks
from tidelock.replica_agent.transactions.statements.row_staging import RowStaging
from tidelock.replica_agent.transactions.statements.unique import UniqueKeys
from tidelock.replication.core.lock_rules import LockLimits
from tidelock.replication.locks.removal_locks import Locks


class TransactionParts(msgspec.Struct, frozen=True, kw_only=True):
    """The transactions of this home, and the parts that run them."""

    registry: Transactions
    outcomes: OutcomeResolver
    locks: Locks
    removals: Removals
    labels: Labels
    commits: Commits
    sql: SqlPool
    inserts: Inserts
    tables: TableStatements


def make_transactions(means: Means, replication: ReplicationParts) -> TransactionParts:
    """Make these parts; they do not run yet."""
    local, settings, reader = means.local, means.settings, means.reader
    registry, tables = Transactions(means.replica, means.session.boot, settings, time.monotonic), local.tables
    outcomes = _outcomes(means, replication, registry)
    locks = _locks(means, replication, outcomes)
    staging = RowStaging(
        settings=settings,
        catalog=local.catalog,
        files=local.files,
        stager=replication.stager,
        numbers=replication.numbers,
        transactions=registry,
        tables=tables,
        hint=replication.pusher.hint,
    )
    means.stack.callback(staging.close)
    sql = SqlPool(settings, settings.data_dir)
    means.stack.push_async_callback(sql.close)
    checks = RowChecks(staging=staging, catalog=local.catalog, sql=sql)
    removals = Removals(
        settings=settings,
        switches=means.switches,
        catalog=local.catalog,
        files=local.files,
        transactions=registry,
        tables=tables,
        staging=staging,
        checks=checks,
        locks=locks,
        waiters=local.waiters,
    )
    labels = Labels(replication.log, reader, local.waiters, settings)
    commits = _commits(means, replication, registry, staging, removals, labels)
    mutations = Mutations(
        settings=settings,
        catalog=local.catalog,
        files=local.files,
        transactions=registry,
        tables=tables,
        staging=staging,
        removals=removals,
        keys=UniqueKeys(switches=means.switches, reader=reader, transactions=registry, locks=locks),
        checks=checks,
        sql=sql,
    )
    inserts = Inserts(
        settings=settings,
        waiters=local.waiters,
        metrics=means.metrics,
        transactions=registry,
        tables=tables,
        pressure=BackPressure(settings, local.counts, means.metrics),
        staging=staging,
        mutations=mutations,
        derived=DerivedTables(settings=settings, tables=tables, sql=sql),
        checks=checks,
    )
    return TransactionParts(
        registry=registry,
        outcomes=outcomes,
        locks=locks,
        removals=removals,
        labels=labels,
        commits=commits,
        sql=sql,
        inserts=inserts,
        tables=_tables(means, registry, inserts),
    )


def _tables(means: Means, registry: Transactions, inserts: Inserts) -> TableStatements:
    return TableStatements(
        settings=means.settings,
        catalog=means.local.catalog,
        files=means.local.files,
        waiters=means.local.waiters,
        tables=means.local.tables,
        transactions=registry,
        inserts=inserts,
    )


def _outcomes(means: Means, replication: ReplicationParts, registry: Transactions) -> OutcomeResolver:
    local = LocalOutcomes(
        replica=means.replica,
        boot=means.session.boot,
        transactions=registry,
        reader=means.reader,
        taken=replication.applier.taken,
    )
    return OutcomeResolver(replica=means.replica, local=local, log=replication.log, homes=replication.homes)


def _locks(means: Means, replication: ReplicationParts, outcomes: OutcomeResolver) -> Locks:
    settings = means.settings
    return Locks(
        replica=means.replica,
        boot=means.session.boot,
        store=means.store,
        fenced=replication.log.fenced,
        outcome=partial(outcomes.outcome, policy=LOCK),
        fence_home=replication.homes.fence_present,
        silent=replication.homes.silent,
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


def _commits(
    means: Means,
    replication: ReplicationParts,
    registry: Transactions,
    staging: RowStaging,
    removals: Removals,
    labels: Labels,
) -> Commits:
    local, settings, copies = means.local, means.settings, replication.copies
    gate = GroupCommitGate(settings.commit_gather_s)
    settlement = Settlement(
        settings=settings,
        log=replication.log,
        proposals=ProposalBuilder(
            replica=means.replica,
            settings=settings,
            transactions=registry,
            numbers=replication.numbers,
            copies=copies,
            removals=removals,
        ),
        labels=labels,
        validation=Validation(
            reader=means.reader, tables=local.tables, log=replication.log, waiters=local.waiters
        ),
        order=DefinitionOrder(tables=local.tables, log=replication.log, waiters=local.waiters),
        clock=time.monotonic,
    )
    closer = TransactionCloser(
        settings=settings,
        transactions=registry,
        catalog=local.catalog,
        files=local.files,
        copies=copies,
        removals=removals,
    )
    return Commits(
        replica=means.replica,
        settings=settings,
        transactions=registry,
        metrics=means.metrics,
        applied=AppliedCommits(
            reader=means.reader,
            waiters=local.waiters,
            applied_on=replication.membership.wait_applied,
            clock=time.monotonic,
        ),
        settlement=settlement,
        closer=closer,
        staging=staging,
        carriers=Carriers(
            settings=settings,
            transactions=registry,
            staging=staging,
            settlement=settlement,
            closer=closer,
            gate=gate,
            reached=lambda: local.waiters.reached,
        ),
        gate=gate,
        delay=replication.membership.delay_commit,
        clock=time.monotonic,
    )
