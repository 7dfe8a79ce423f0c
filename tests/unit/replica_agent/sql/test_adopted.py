"""The view of a SQL process for a transaction that has adopted merges."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tests.support.replicas.datadir import DataDir
from tests.support.replicas.mutations import run
from tidelock.csnlog.core.ids import TableId
from tidelock.replica_agent.sql.mutation import DeleteRows

T = TableId("default.t")
SCHEMA = pa.schema([("k", pa.int64())])


def test_what_was_adopted_is_seen(tmp_path: Path) -> None:
    """The output of a merge above the snapshot is visible, and its inputs are not."""
    directory = DataDir(tmp_path / "data")
    directory.create_table(2, "t", SCHEMA)
    parts = [directory.insert(csn, {T: pa.table({"k": [csn]}, SCHEMA)})[0].part for csn in (3, 4, 5)]
    for part in parts[:2]:
        directory.remove(6, part, change=False)
    made = directory.insert(6, {T: pa.table({"k": [3, 4]}, SCHEMA)})[0]
    delete = DeleteRows("k IN (3, 4, 5)")
    assert set(run(directory, "t", delete, csn=5).affected.parts) == set(parts)
    done = run(directory, "t", delete, csn=5, tid="5-r1-1-9", adopted=(made.creation_tid,))
    assert set(done.affected.parts) == {parts[2], made.part}
    assert done.ended.rows_deleted == 3
