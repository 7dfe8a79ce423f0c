"""A large file is written through the file system; the agents' memory does not depend on its size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.memory import MIB, Peaks
from tests.support.spark.hdfs_client import Folder, file_name
from tests.support.spark.proof import require_settled
from tidelock.cluster import LocalCluster

pytestmark = pytest.mark.slow

SCHEMA: Final = pa.schema([("id", pa.int64()), ("noise", pa.binary())])
#: Bytes of a row, also in the file, since noise cannot be compressed.
ROW_BYTES: Final = 1 * MIB
GROUP_ROWS: Final = 64
SMALL, LARGE = 64, 1024
PIECE_BYTES: Final = 64 << 10
#: How much the home may grow when it takes a file, and a peer when it fetches it (4 ranges of 16 MiB), for
#: any size of the file.
GROWTH_BYTES: Final = 96 * MIB
#: How much more an agent may grow for the large file than for the small one.
DIFFERENCE_BYTES: Final = 32 * MIB


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Two replicas, both needed for a commit."""
    settings = {**QUICK, "commit_timeout_s": 120, "compaction": False}
    return module_cluster(replicas=2, settings=settings)


def make(path: Path, rows: int) -> int:
    """Make a file with rows of noise; return its length in bytes."""
    noise = np.random.default_rng(rows)
    with pq.ParquetWriter(path, SCHEMA, store_schema=False, compression="none", use_dictionary=False) as file:
        for first in range(0, rows, GROUP_ROWS):
            ids = range(first, min(rows, first + GROUP_ROWS))
            values = [noise.bytes(ROW_BYTES) for _ in ids]
            file.write_table(pa.table({"id": ids, "noise": values}, schema=SCHEMA))
    return path.stat().st_size


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file as Hadoop's client sends them."""
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def load(local: LocalCluster, table: str, path: Path, rows: int) -> Peaks:
    """Write a file with this number of rows into a table and commit; return the growth of the agents."""
    make(path, rows)
    with local.connect("r1") as db:
        db.create_table(table, SCHEMA)
        agents = {replica: psutil.Process(local.pid(replica)) for replica in local.replicas}
        with Peaks(agents) as peaks, db.begin() as tx:
            assert Folder(tx.path(table)).write({"": pieces(path)}).status == 201
            tx.commit(wait="all")
        with db.snapshot() as snap:
            assert snap.scan(table, ["id"]).count() == rows
    path.unlink()
    return peaks


def test_memory_does_not_depend_on_the_size(local: LocalCluster, tmp_path: Path) -> None:
    """A file of 1 GiB needs no more memory than one of 64 MiB, at the home and at the fetching replica."""
    small = load(local, "small", tmp_path / file_name(), SMALL)
    large = load(local, "large", tmp_path / file_name(), LARGE)
    told = f"{SMALL} MiB: {small}; {LARGE} MiB: {large}"
    print(told)  # noqa: T201 - figures, shown by -s and by a failure
    for replica in local.replicas:
        assert large.growth[replica] < GROWTH_BYTES, told
        assert large.largest[replica] - small.largest[replica] < DIFFERENCE_BYTES, told
    require_settled(local)
