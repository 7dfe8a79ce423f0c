"""Power cuts of a replica that takes a file of a transaction whose home is another replica.

The claims of its catalog are compared with the bytes on its platter before it starts again. The writer got no
answer, so its attempt does not count, and the next one does.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pytest

from tests.chaos.cut_points import OF_UPLOADS
from tests.chaos.dark import World, world_of
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import api_address, nothing_left, require_clean_audit
from tests.support.spark.hdfs_client import Folder, file_name, parquet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HOME: Final = "r1"
VICTIM: Final = "r2"
SCHEMA: Final = pa.schema([("id", pa.int64()), ("filling", pa.binary())])
#: A replica gets files only if it has room for a part of the largest size, and the disk is small.
SETTINGS: Final = {**QUICK, "part_bytes_max": 4 << 20, "secret": "a shared secret"}
#: Bytes of a file that becomes a part of its own, and of one that would fit into a pack.
SIZES: Final = {"large": 2 << 20, "small": 10}


@pytest.fixture(scope="module")
def world(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One cluster for the module."""
    with world_of(module_cluster, tmp_path_factory.mktemp("dark"), VICTIM, OF_UPLOADS, SETTINGS) as found:
        yield found


def file_of(number: int, size: int) -> bytes:
    """A file of one row."""
    return parquet(pa.table({"id": [number], "filling": [os.urandom(size)]}, SCHEMA))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("point", OF_UPLOADS)
def test_while_a_file_comes_in(world: World, point: str, size: str) -> None:
    """The power is cut before or after the home has noted the durable file: the next attempt counts."""
    cluster = world.cluster
    attempts = [f"_temporary/0/_temporary/attempt_1_m_000000_{attempt}" for attempt in range(2)]
    with cluster.connect(HOME) as db:
        table = f"t{len(db.tables())}"
        db.create_table(table, SCHEMA)
        tx = db.begin()
        folder = Folder(tx.path(table))
        folder.setup()
        place, taker = f"{attempts[0]}/{file_name()}", api_address(cluster, VICTIM)

        def send() -> None:
            with pytest.raises((OSError, http.client.HTTPException)):
                folder.create(place, file_of(1, SIZES[size]), to=taker)

        hits = world.gates.hits(VICTIM, point)
        with world.gates.open(VICTIM, point), world.dark(send):
            world.gates.await_hit(VICTIM, point, after=hits)
        cluster.start(VICTIM)
        assert folder.done("DELETE", "DELETE", attempts[0], recursive="true")
        assert folder.create(f"{attempts[1]}/{file_name()}", file_of(2, SIZES[size])).status == 201
        folder.commit_task(attempts[1])
        assert folder.commit_job().status == 201
        done = tx.commit(wait="all")
        for replica in cluster.replicas:
            with cluster.connect(replica) as reader, reader.snapshot(csn=done.csn) as snapshot:
                assert snapshot.read(table, ["id"])["id"].to_pylist() == [2]
            nothing_left(cluster.data_dir(replica))
    require_clean_audit(cluster)
