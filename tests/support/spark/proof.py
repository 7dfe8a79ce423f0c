"""Tables that Spark writes to in tests, and the proof that they hold exactly the expected rows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pyarrow as pa

from tests.support.histories.evidence import nothing_left, reached, require_clean_audit
from tests.support.spark.rows import PARTITION_BY, SCHEMA, rows
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from workloads.agents import ask


def create(db: Database, table: str, *, partitioned: bool = True) -> None:
    """Create a table for the rows of `tests.support.spark.rows`."""
    db.create_table(table, SCHEMA, partition_by=PARTITION_BY if partitioned else ())


def require_rows(local: LocalCluster, table: str, csn: int | None, ids: Iterable[int]) -> None:
    """Require that every replica has exactly these rows at a CSN, None = the newest; all replicas run."""
    expected = pa.Table.from_batches([rows(sorted(ids))])
    end = max(int(ask(local, replica, "/status")["end_csn"]) for replica in local.replicas)
    for replica in local.replicas:
        eventually(partial(reached, local, replica, csn or end), what=f"{replica} at CSN {csn or end}")
        with local.connect(replica) as db, db.snapshot(csn) as snap:
            found = snap.read(table).sort_by("id")
        assert found["id"].to_pylist() == expected["id"].to_pylist(), (replica, table, csn)
        assert found.cast(SCHEMA).equals(expected), (replica, table, csn)


def require_settled(local: LocalCluster) -> None:
    """Require that no disk has files of uncommitted transactions, and that all replicas agree."""
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
    require_clean_audit(local)
