"""The counts of parts follow what is applied, several records at once, without counting all again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.replicas.datadir import DataDir, added, applied
from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.csnlog.core.model import ChangeTable, Entry, RemovePart, SkipPart
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.part_counts import PartCounts

GONE, KEPT = TableId("default.gone"), TableId("default.kept")
ROWS = pa.table({"p": ["x"], "n": [1]})


def _definition(name: str, *, dropped: bool = False) -> ChangeTable:
    definition = {"name": name, **({"dropped": True} if dropped else {})}
    return ChangeTable(GONE, 1, definition)


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    """Two tables with a part in partition x each, at CSN 3."""
    made = DataDir(tmp_path / "data")
    for table in (GONE, KEPT):
        made.create_table(2, table, ROWS.schema, partition_by=["p"])
    made.insert(3, {GONE: ROWS, KEPT: ROWS})
    return made


@pytest.mark.parametrize("kind", ["drop", "rename", "lost"])
def test_a_batch_is_counted_once_whatever_it_defines(data: DataDir, kind: str) -> None:
    """The catalog has the whole batch already when its first record is counted."""
    counts = PartCounts(CatalogReader(data.path))
    [old] = data.parts(KEPT)
    first: Entry = _definition("default.other")
    if kind == "drop":
        first = _definition(GONE, dropped=True)
        data.remove(4, data.parts(GONE)[0].part)
    elif kind == "lost":
        first = SkipPart(KEPT, PartId("r9-1-1"), 1, Csn(3), "2-r9-1-1", "ann", "burnt", 0)
    [one], [two] = data.insert(5, {KEPT: ROWS}), data.insert(6, {KEPT: ROWS})
    data.remove(7, old.part)
    entries = [first, added(one), added(two), RemovePart(KEPT, old.part)]
    counts.applied([applied(csn, [entry]) for csn, entry in enumerate(entries, 4)])
    again = PartCounts(CatalogReader(data.path))
    for table in (GONE, KEPT):
        assert counts.total(table) == again.total(table) == (2 if table == KEPT else int(kind != "drop"))
    assert (counts.largest, counts.tables()) == (again.largest, again.tables())


def test_a_definition_leaves_the_partitions_of_other_tables_at_rest(data: DataDir) -> None:
    """Compaction looks at a partition again when the CSN of its count has changed."""
    counts = PartCounts(CatalogReader(data.path))
    before = [(path, found.csn) for path, found in counts.partitions(KEPT)]
    data.remove(4, data.parts(GONE)[0].part)
    counts.applied([applied(4, [_definition(GONE, dropped=True)])])
    assert [(path, found.csn) for path, found in counts.partitions(KEPT)] == before
    assert counts.tables() == [KEPT]
