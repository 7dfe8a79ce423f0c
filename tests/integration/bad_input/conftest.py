"""One cluster of three replicas, with small limits, for all tests whose bad input must leave it intact."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.clusters.cluster import _factory
from tests.support.faults.refusals import LIMITS, Ground
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.zookeeper import LocalZooKeeper

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="package")
def limited(
    tmp_path_factory: pytest.TempPathFactory, zookeeper_server: LocalZooKeeper
) -> Iterator[LocalCluster]:
    """The cluster."""
    with _factory(tmp_path_factory.mktemp("limited"), zookeeper_server) as factory:
        yield factory(settings=LIMITS)


@pytest.fixture(scope="package")
def db(limited: LocalCluster) -> Iterator[Database]:
    """A client of the cluster."""
    with limited.connect() as db:
        yield db


@pytest.fixture
def ground(limited: LocalCluster, db: Database) -> Ground:
    """A table of this test alone; at the end, the check that refused requests left it as it was."""
    return Ground(limited, db, f"ground_{next(_NUMBERS)}")
