"""A catalog that is damaged under a replica that serves: it ends, and its clients go on elsewhere."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pyarrow as pa

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.waiting import eventually
from tidelock.client import connect

#: SQLite's pages have this size at least; the first one, the header of the file, is kept.
PAGE = 4096
ENDS_WITHIN_S = 60
ROWS = pa.table({"k": pa.array([1, 2, 3], pa.int64())})


def _overwrite(catalog: Path) -> None:
    """Replace every page but the first, in the file and in what was written to it last."""
    for path in (catalog, catalog.with_name(catalog.name + "-wal")):
        with path.open("r+b", buffering=0) as file:
            size = path.stat().st_size
            file.seek(PAGE)
            file.write(b"\xff" * (size - PAGE))


def test_clients_do_not_notice_a_damaged_catalog(cluster: ClusterFactory) -> None:
    """Users saw CorruptError from a replica that was about to end, while two others had the rows."""
    local = cluster(settings=QUICK)
    with local.connect() as db:
        db.create_table("t", ROWS.schema)
        db.insert("t", ROWS, wait="all")
    with connect(local.urls) as db:
        until = time.monotonic() + ENDS_WITHIN_S
        for turn in itertools.count():
            if turn == 1:
                _overwrite(local.data_dir("r1") / "catalog.db")
            with db.snapshot() as snapshot:
                assert snapshot.scan("t").count() == (turn + 1) * ROWS.num_rows
            db.insert("t", ROWS)
            if local.pid("r1") is None:
                break
            assert time.monotonic() < until, "r1 serves with a catalog that is no database"
    eventually(lambda: "damaged" in local.log("r1").read_text(), what="r1 says why it has ended")
