"""Wires the parts that take rows of landing tables, and bring those of a boot that has ended. Pure wiring."""

from __future__ import annotations

import time

import msgspec

from tidelock.replica_agent.landing.landings import Landings
from tidelock.replica_agent.landing.rescue import Rescue
from tidelock.replica_agent.landing.upserts import LandingUpserts
from tidelock.replica_agent.lifecycle.means import Means
from tidelock.replica_agent.lifecycle.replication_parts import ReplicationParts
from tidelock.replica_agent.lifecycle.transaction_parts import TransactionParts


class LandingParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of landing tables."""

    landings: Landings
    rescue: Rescue


def make_landing(means: Means, replication: ReplicationParts, transactions: TransactionParts) -> LandingParts:
    """Make these parts; they do not run yet."""
    local, settings, inserts = means.local, means.settings, transactions.inserts
    upserts = LandingUpserts(
        settings=settings,
        transactions=transactions.registry,
        waiters=local.waiters,
        mutations=inserts.mutations,
        commits=transactions.commits,
        metrics=means.metrics,
        damage=means.damage,
        executor=inserts.staging.encoders,
        clock=time.monotonic,
    )
    rescue = Rescue(
        condition=means.condition,
        log=replication.log,
        waiters=local.waiters,
        catalog=local.catalog,
        tables=local.tables,
        files=local.files,
        numbers=replication.numbers,
        transactions=transactions.registry,
        commits=transactions.commits,
        skips=means.session.skips,
        metrics=means.metrics,
        damaged=means.events.corrupt,
        wait_s=settings.wait_bound_s,
    )
    landings = Landings(
        settings=settings,
        transactions=transactions.registry,
        tables=local.tables,
        waiters=local.waiters,
        pressure=inserts.pressure,
        staging=inserts.staging,
        commits=transactions.commits,
        upserts=upserts,
        rescue=rescue.settle,
        metrics=means.metrics,
    )
    return LandingParts(landings=landings, rescue=rescue)
