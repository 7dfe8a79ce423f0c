"""Counts of parts, and the delay or refusal of inserts when there are too many."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.replicas.datadir import DataDir, added, applied
from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId
from tidelock.csnlog.core.model import RemovePart
from tidelock.errors import TooManyPartsError
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.part_counts import PartCounts
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.back_pressure import BackPressure, delay_s
from tidelock.replication.core.model import PartMeta

TABLE = TableId("default.t")
SCHEMA = pa.schema([("k", pa.int64()), ("y", pa.int32())])
ROWS = pa.table({"k": [1, 2, 3], "y": [1, 1, 2]}, schema=SCHEMA)


@pytest.fixture
def data_dir(tmp_path: Path) -> DataDir:
    """A catalog with a table of two partitions."""
    made = DataDir(tmp_path / "data")
    made.create_table(2, "t", SCHEMA, partition_by=["y"])
    return made


def test_counts_begin_with_the_catalog_and_follow_the_log(data_dir: DataDir) -> None:
    """Parts from the start and parts applied later are counted; removed parts are not."""
    first, second = data_dir.insert(3, {TABLE: ROWS})
    data_dir.insert(4, {TABLE: ROWS.slice(2)})
    data_dir.remove(5, second.part)
    counts = PartCounts(CatalogReader(data_dir.path))
    assert {path: found.parts for path, found in counts.partitions(TABLE)} == {"y=1": 1, "y=2": 1}

    new = data_dir.insert(6, {TABLE: ROWS})
    counts.applied([applied(6, [added(part) for part in new])])
    assert (counts.of(TABLE, "y=1"), counts.of(TABLE, "y=2"), counts.largest) == (2, 2, 2)
    assert counts.total(TABLE) == 4
    assert dict(counts.partitions(TABLE))["y=1"].csn == 6

    data_dir.remove(7, first.part)
    data_dir.remove(7, new[0].part)
    counts.applied([applied(7, [RemovePart(TABLE, first.part), RemovePart(TABLE, new[0].part)])])
    assert (counts.of(TABLE, "y=1"), counts.largest) == (0, 2)
    assert [path for path, _ in counts.partitions(TABLE)] == ["y=2"]
    assert counts.tables() == [TABLE]


def test_undecided_parts_are_not_counted(data_dir: DataDir) -> None:
    """A part of a transaction that may be rolled back delays no other insert."""
    first, _ = data_dir.insert(3, {TABLE: ROWS})
    with data_dir.sql() as db:
        db.execute("UPDATE parts SET creation_csn = NULL WHERE part = ?", (first.part,))
    counts = PartCounts(CatalogReader(data_dir.path))
    assert (counts.of(TABLE, "y=1"), counts.of(TABLE, "y=2")) == (0, 1)


def test_waits_grow_up_to_the_refusal() -> None:
    """The delay is 0 below the first bound, longest just below the second, and linear between them."""
    waits = [delay_s(found, 10, 20, 2.0) for found in range(20)]
    assert waits[:10] == [0.0] * 10
    steps = [after - before for before, after in itertools.pairwise(waits[9:])]
    assert steps == pytest.approx([0.2] * 10)
    assert waits[-1] == pytest.approx(2.0)


async def test_an_insert_waits_and_is_refused(data_dir: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own staged parts count; the refusal names the number, the limit, and the next step."""
    pauses: list[float] = []

    async def note(pause_s: float) -> None:
        pauses.append(pause_s)

    monkeypatch.setattr(asyncio, "sleep", note)
    data_dir.insert(3, {TABLE: ROWS})
    schema = TableSchema.from_request("t", SCHEMA, ["y"])
    limits = settings(parts_delay_insert=2, parts_refuse_insert=4, insert_delay_max_s=1.0)
    metrics = Metrics()
    pressure = BackPressure(limits, PartCounts(CatalogReader(data_dir.path)), metrics)

    tx = Transactions(ReplicaId("r1"), 1, limits, lambda: 0.0).begin(Csn(3))
    for number in range(4):
        tx.staged.stored[PartId(f"r1-2-{number}")] = PartMeta(
            PartId(f"r1-2-{number}"), TABLE, "y=1", 1, 1, ""
        )
    for own in (4, 3, 2):
        await pressure.admit(tx.staged, schema, "y=1", own)
    assert pauses == [0.5, 1.0]
    with pytest.raises(TooManyPartsError, match="parts_refuse_insert=4") as refused:
        await pressure.admit(tx.staged, schema, "y=1", 1)
    await pressure.admit(tx.staged, schema, "y=2")
    assert refused.value.details == {"table": TABLE, "partition": "y=1", "found": 4, "limit": 4}
    assert "tidelock admin optimize default.t" in refused.value.message
    assert "does not keep up" in refused.value.message
    shown = {sample.name: sample.value for family in metrics.registry.collect() for sample in family.samples}
    assert shown["tidelock_inserts_delayed_total"] == 2
    assert shown["tidelock_inserts_refused_total"] == 1


async def test_a_refusal_names_the_property_that_turns_compaction_off(data_dir: DataDir) -> None:
    """If compaction is off, the refusal names that as the reason."""
    data_dir.insert(3, {TABLE: ROWS})
    schema = TableSchema.from_request("t", SCHEMA, ["y"], properties={"compaction": "off"})
    limits = settings(parts_delay_insert=1, parts_refuse_insert=1)
    pressure = BackPressure(limits, PartCounts(CatalogReader(data_dir.path)), Metrics())
    tx = Transactions(ReplicaId("r1"), 1, limits, lambda: 0.0).begin(Csn(3))
    with pytest.raises(TooManyPartsError, match="property compaction"):
        await pressure.admit(tx.staged, schema, "y=1")
