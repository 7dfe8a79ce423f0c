"""A cluster of a module whose replicas agree at the end, and a session at each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.histories.evidence import nothing_left, require_clean_audit
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.testing import Cluster


def agreeing(local: LocalCluster) -> Iterator[LocalCluster]:
    """Yield a cluster; at its end all replicas run and agree, and have no file that is not needed."""
    yield local
    for replica in local.replicas:
        local.start(replica)
    require_clean_audit(local)
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))


def all_follow(local: LocalCluster | Cluster) -> None:
    """Wait until every replica shows what is committed now: a client that begins at any of them sees it."""
    with local.connect() as db, db.begin(fresh=True) as tx:
        for replica in local.replicas:
            with local.connect(replica) as one:
                one.snapshot(min_csn=tx.snapshot_csn).close()


@pytest.fixture
def dbs(local: LocalCluster) -> Iterator[list[Database]]:
    """Clients of the module's own fixture `local`; see :func:`sessions`."""
    yield from sessions(local)


@pytest.fixture
def db(dbs: list[Database]) -> Database:
    """The one of these clients that is pinned to the first replica."""
    return dbs[0]


def sessions(local: LocalCluster) -> Iterator[list[Database]]:
    """Yield a client pinned to each replica, in their order; no table is left at the end.

    They are one session: what one of them has committed or read, all of them see, however late a replica
    follows.
    """
    with contextlib.ExitStack() as closing:
        made = [closing.enter_context(local.connect(replica)) for replica in local.replicas]
        for other in made[1:]:
            other._connection.members.highest_csn = made[0]._connection.highest_csn
        yield made
        with made[0].begin(fresh=True) as tx:
            found = made[0].tables(csn=tx.snapshot_csn)
            for row in sorted(found, key=lambda row: row.derived_from is None):
                tx.drop_table(row.name)


def session(local: LocalCluster) -> Iterator[Database]:
    """Yield a client pinned to the first replica; no table is left at the end."""
    for first, *_ in sessions(local):
        yield first
