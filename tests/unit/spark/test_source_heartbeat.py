"""Heartbeats of writing tasks: they keep a transaction alive while its driver is silent."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from tests.support.replicas.fake_agent import FakeCluster, FakeTransaction, token_of
from tests.support.waiting import eventually
from tidelock.client import Database, Transaction
from tidelock.errors import UnavailableError
from tidelock.spark.source.heartbeat import kept_alive

HEARTBEAT = "POST /transactions/.*/heartbeat"


@pytest.fixture
def tx(fake_db: Database) -> Transaction:
    """A transaction whose driver is silent."""
    begun = fake_db.begin(lease=3600)
    fake_db._connection.leases.remove(begun)
    return begun


def test_short_tasks_keep_a_transaction(fake_cluster: FakeCluster, tx: Transaction) -> None:
    """Each task renews the lease when it begins, even if it is much shorter than a third of the lease."""
    home = fake_cluster["r1"]
    seen = home.transactions[tx.tid]
    for before in range(3):
        with kept_alive(home.url, token_of(tx.tid), tx.lease_s, at_once=True):
            eventually(partial(_was_renewed, seen, before))


def _was_renewed(seen: FakeTransaction, before: int) -> bool:
    return seen.heartbeats > before


def test_a_task_that_has_just_begun_it_asks_for_nothing(fake_cluster: FakeCluster, tx: Transaction) -> None:
    """The lease is new then, and a micro-batch should need few requests."""
    home = fake_cluster["r1"]
    with kept_alive(home.url, token_of(tx.tid), tx.lease_s, at_once=False):
        pass
    assert home.count(HEARTBEAT) == 0


def test_renewals_that_fail_are_told_once(
    fake_cluster: FakeCluster, tx: Transaction, caplog: pytest.LogCaptureFixture
) -> None:
    """The task continues, the renewal is repeated, and the log has one warning and no token."""
    home, token = fake_cluster["r1"], token_of(tx.tid)
    home.plan(HEARTBEAT, *[UnavailableError("not now")] * 3)
    with (
        caplog.at_level(logging.WARNING),
        kept_alive(home.url, token, 0.5, at_once=True),
    ):
        eventually(lambda: home.transactions[tx.tid].heartbeats > 0)
    [warning] = [record.getMessage() for record in caplog.records if record.name.endswith("heartbeat")]
    assert tx.tid in warning
    assert "not now" in warning
    assert token not in caplog.text
