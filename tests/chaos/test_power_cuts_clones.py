"""Power cuts at every fault point of a clone: of the replica that clones, and of the peer that sends.

The disk of the victim is that of `tests.chaos.dark`; before the next start the claims of its catalog are
compared with the bytes on the platter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pytest

from tests.chaos.cut_points import OF_CLONES, OF_SOURCES
from tests.chaos.dark import World, world_of
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.disks import lose_disk
from tests.support.waiting import eventually
from tidelock.cluster import LocalCluster
from tidelock.errors import UnavailableError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

VICTIM: Final = "r2"
SETTINGS: Final = {**QUICK, "part_bytes_max": 4 << 20}
#: How long a start is watched that waits for a peer without power, in seconds.
_WAIT_S: Final = 20.0
ROWS: Final = pa.table({"n": range(1000)})


@pytest.fixture(scope="module")
def world(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two replicas with history that is collected, so that an empty one has to clone."""
    points = [*OF_CLONES, *OF_SOURCES]
    with world_of(
        module_cluster, tmp_path_factory.mktemp("dark"), VICTIM, points, SETTINGS, replicas=2
    ) as found:
        with found.cluster.connect("r1") as db:
            db.create_table("t", ROWS.schema)
            for _ in range(3):
                db.insert("t", ROWS, wait="all")
            db.truncate("t")
            last = db.insert("t", ROWS, wait="all").csn or 0
            eventually(lambda: db.raise_horizon()["horizon"] >= last, what="the history is given up")
        yield found


def start(cluster: LocalCluster, replica: str) -> None:
    """Start an agent that may not become ready: a power cut comes before."""
    with contextlib.suppress(UnavailableError):
        cluster.start(replica, timeout_s=_WAIT_S)


def require_rows(cluster: LocalCluster) -> None:
    """Require the rows on both replicas, and that they commit together."""
    for replica in cluster.replicas:
        with cluster.connect(replica) as db:
            assert db.read("t").num_rows == ROWS.num_rows
            db.create_table(f"t{len(db.tables())}", ROWS.schema)


@pytest.mark.scenario("S76")
@pytest.mark.parametrize("point", OF_CLONES)
def test_of_a_replica_that_clones(world: World, point: str) -> None:
    """The catalog is the old one or the new one, never a mixture; the next start ends the clone."""
    cluster = world.cluster
    lose_disk(cluster, VICTIM)
    hits = world.gates.hits(VICTIM, point)
    with world.gates.open(VICTIM, point), world.dark(lambda: start(cluster, VICTIM)):
        world.gates.await_hit(VICTIM, point, after=hits)
    cluster.start(VICTIM)
    require_rows(cluster)


@pytest.mark.parametrize("point", OF_SOURCES)
def test_of_the_peer_that_sends(world: World, point: str) -> None:
    """The replica that clones waits for its only peer, and asks it again when it is back."""
    cluster = world.cluster
    lose_disk(cluster, "r1")
    hits = world.gates.hits(VICTIM, point)
    with world.gates.open(VICTIM, point), world.dark(lambda: start(cluster, "r1")):
        world.gates.await_hit(VICTIM, point, after=hits)
    cluster.start(VICTIM)
    cluster.start("r1")
    require_rows(cluster)
