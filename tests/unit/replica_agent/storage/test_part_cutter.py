"""Row groups of a stored part become a part of their own: rows, digests, statistics, and damage."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.replicas.datadir import DataDir
from tests.support.rows import Sinks
from tidelock.errors import CorruptError
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replica_agent.storage.part_cutter import cut_part
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replication.core.digest import RangeDigest

SCHEMA = pa.schema([("p", pa.int64()), ("k", pa.int64()), ("s", pa.string())])
TABLE = TableSchema.from_request("t", SCHEMA, ["p"])
ROWS = pa.table({"p": [7] * 100, "k": range(100), "s": [f"text {n}" for n in range(100)]}, SCHEMA)


@pytest.fixture
def directory(tmp_path: Path) -> DataDir:
    """A replica with one part of ten row groups, in the partition p=7."""
    made = DataDir(tmp_path / "data")
    made.create_table(2, "t", SCHEMA, partition_by=["p"])
    made.insert(3, {"default.t": ROWS}, row_group_rows=10)
    return made


def source(directory: DataDir) -> PartRow:
    """The row of the part."""
    [part] = directory.parts("default.t")
    return part


@pytest.mark.parametrize("inline_bytes", [1, 1 << 20], ids=["a file", "in memory"])
def test_a_part_of_some_row_groups(directory: DataDir, inline_bytes: int) -> None:
    """It has their rows and statistics, the partition of the other part, and digests of its own bytes."""
    sinks = Sinks()
    maker = sinks.maker(TABLE, inline_part_bytes_max=inline_bytes)
    part = cut_part(maker, directory.path, source(directory), [2, 3, 9])
    data = bytes(sinks.written[part.part]) if inline_bytes == 1 else part.data
    assert data is not None
    assert (part.data is None) == (inline_bytes == 1)
    rows = pa.concat_tables([ROWS.slice(20, 20), ROWS.slice(90, 10)]).drop_columns("p")
    assert pq.read_table(pa.BufferReader(data)).equals(rows)
    assert (part.rows, part.path, part.form) == (30, "p=7", None)
    digest = RangeDigest()
    digest.update(data)
    assert (part.length, part.checksum, part.blocks) == (len(data), digest.checksum(), digest.blocks())
    assert part.stats == {"k": [20, 99, 0], "s": ["text 20", "text 99", 0]}


def test_a_damaged_row_group_is_not_copied(directory: DataDir) -> None:
    """The error names the part, so that it is fetched again."""
    part = source(directory)
    directory.flip_bit(part, 40)
    with pytest.raises(CorruptError, match=part.part) as refused:
        cut_part(Sinks().maker(TABLE), directory.path, part, [5])
    assert refused.value.details["part"] == part.part


def test_a_part_that_was_found_damaged_is_not_cut(directory: DataDir) -> None:
    """Its file may be about to go."""
    part = msgspec.structs.replace(source(directory), state="quarantined")
    with pytest.raises(CorruptError, match="fetched again"):
        cut_part(Sinks().maker(TABLE), directory.path, part, [5])


def test_a_file_that_cannot_be_cut(directory: DataDir) -> None:
    """A process that has looked at other bytes has named row groups that do not exist."""
    with pytest.raises(CorruptError, match="row groups"):
        cut_part(Sinks().maker(TABLE), directory.path, source(directory), [10])
