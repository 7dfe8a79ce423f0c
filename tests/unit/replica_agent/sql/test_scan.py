"""Scans of a table: DuckDB gets the rows of the visible parts, and only the needed bytes are read."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.replicas.datadir import DataDir
from tests.support.rows import batches
from tidelock.csnlog.core.ids import TableId
from tidelock.errors import BadRequestError, CorruptError, StandbyError, TidelockError
from tidelock.replica_agent.sql.scan import BATCH_BYTES, BATCH_ROWS, READ_BYTES, SnapshotTable, TableSource
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replica_agent.tables.schema import TableSchema

T = TableId("default.t")


class Scanned:
    """A table and the errors of its scans."""

    def __init__(self, directory: DataDir, schema: TableSchema) -> None:
        self.errors: list[Exception] = []
        self.schema = schema
        self.parts: Sequence[PartRow] = directory.parts(T)
        source = TableSource(schema, directory.path, lambda: self.parts, self.errors.append)
        self.table = SnapshotTable(source)

    def rows(self, columns: Sequence[str] | None = None, condition: Any = None) -> pa.Table:
        """Scan as DuckDB does."""
        return self.table.scanner(columns=columns, filter=condition).to_reader().read_all()

    def fails(self, columns: Sequence[str] | None = None, condition: Any = None) -> TidelockError:
        """Scan and return the noted error."""
        with pytest.raises(TidelockError):
            self.rows(columns, condition)
        assert isinstance(self.errors[0], TidelockError)
        return self.errors[0]


def large(rows: int = 200_000) -> pa.Table:
    """Return rows for a part larger than one read: `id` counts, `text` compresses badly."""
    return pa.table(
        {"id": range(rows), "text": [f"{number * 2654435761 % 2**32:x}" for number in range(rows)]}
    )


@pytest.fixture
def directory(tmp_path: Path) -> DataDir:
    """Return an empty data directory."""
    return DataDir(tmp_path / "data")


def three_partitions(directory: DataDir) -> Scanned:
    """Return three parts of one row each in the partitions `a`, `b` and null, in one pack."""
    rows = pa.table({"p": ["a", "b", None], "n": [1, 2, 3]})
    schema = directory.create_table(2, "t", rows.schema, partition_by=["p"])
    directory.insert(3, {T: rows}, pack=True)
    return Scanned(directory, schema)


def test_partitions_are_pruned_before_they_are_opened(directory: DataDir) -> None:
    """A filter on the partition does not open the parts of other partitions, although they are damaged."""
    table = three_partitions(directory)
    for part in table.parts:
        if part.path != "p=b":
            directory.flip_bit(part, 10)
    assert table.rows(["n"], pc.field("p") == "b").to_pydict() == {"n": [2]}
    assert table.rows(["n"], (pc.field("p") == "b") & (pc.field("n") > 5)).num_rows == 0
    assert table.errors == []
    assert isinstance(table.fails(["n"], pc.field("p").is_null()), CorruptError)


def test_partition_columns_alone_need_no_file_columns(directory: DataDir) -> None:
    """Partition columns need no column of the files; the numbers of rows are right."""
    rows = pa.table({"p": ["a"] * (BATCH_ROWS + 5) + [None], "n": range(BATCH_ROWS + 6)})
    schema = directory.create_table(2, "t", rows.schema, partition_by=["p"])
    directory.insert(3, {T: rows}, row_group_rows=1000)
    counted = Scanned(directory, schema).rows(["p"]).group_by("p").aggregate([("p", "count")])
    assert sorted(counted.to_pylist(), key=str) == [
        {"p": "a", "p_count": BATCH_ROWS + 5},
        {"p": None, "p_count": 0},
    ]


def test_row_groups_are_pruned_by_statistics(directory: DataDir) -> None:
    """Only the blocks of the row groups of a large part that may match are read."""
    rows = large()
    schema = directory.create_table(2, "t", rows.schema)
    [part] = directory.insert(3, {T: rows}, row_group_rows=50_000)
    assert part.length > 2 * READ_BYTES
    directory.flip_bit(part, 100)
    table = Scanned(directory, schema)
    found = table.rows(["text"], pc.field("id") == 199_999)
    assert found.to_pydict() == {"text": [rows["text"][199_999].as_py()]}
    assert isinstance(table.fails(["text"], pc.field("id") == 5), CorruptError)


@pytest.mark.parametrize("rows", [10, 200_000])
@pytest.mark.parametrize("position", [0, 5, -1])
def test_a_damaged_part_is_named(directory: DataDir, rows: int, position: int) -> None:
    """A flipped bit in the bytes read fails the scan, in small and large parts, and names the part."""
    content = large(rows)
    schema = directory.create_table(2, "t", content.schema)
    [part] = directory.insert(3, {T: content}, pack=True)
    directory.flip_bit(part, position % part.length)
    error = Scanned(directory, schema).fails()
    assert isinstance(error, CorruptError)
    assert error.details == {"part": part.part, "table": T}


def test_wide_rows_come_fewer_at_a_time(directory: DataDir) -> None:
    """The rows decoded at a time do not grow with the number of columns that are read."""
    rows = pa.table({f"c{column}": pa.array(range(10_000), pa.int64()) for column in range(200)})
    schema = directory.create_table(2, "t", rows.schema)
    directory.insert(3, {T: rows})
    table = Scanned(directory, schema)
    found = list(table.table.scanner().to_reader())
    assert sum(batch.num_rows for batch in found) == rows.num_rows
    assert max(batch.nbytes for batch in found) <= BATCH_BYTES
    (narrow,) = table.table.scanner(columns=["c7"]).to_reader()
    assert narrow.num_rows == rows.num_rows


def test_a_row_group_is_forgotten_when_the_next_one_is_read(directory: DataDir) -> None:
    """Memory does not grow with the length of a part."""
    numbers = np.random.default_rng(1).integers(0, 1 << 62, 1_000_000)  # no file encoding makes them small
    rows = pa.table({"k": numbers})
    schema = directory.create_table(2, "t", rows.schema)
    directory.insert(3, {T: rows}, row_group_rows=25_000)
    table = Scanned(directory, schema).table
    tracemalloc.start()
    try:
        assert sum(batch.num_rows for batch in table.scanner().to_reader()) == rows.num_rows
        _, largest = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert largest < rows.nbytes / 4


def test_a_file_that_is_gone(directory: DataDir) -> None:
    """A missing file is damage, never fewer rows."""
    table = three_partitions(directory)
    (directory.path / str(table.parts[0].file)).unlink()
    assert isinstance(table.fails(), CorruptError)


def test_no_memory_is_no_damage(directory: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is not reported as damaged because memory for decoding was missing."""
    table = three_partitions(directory)

    def exhausted(*_: Any, **__: Any) -> None:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr("pyarrow.parquet.ParquetFile", exhausted)
    with pytest.raises(MemoryError):
        table.rows()
    assert [type(error) for error in table.errors] == [pa.ArrowMemoryError]


def test_bytes_that_are_no_part_of_the_table(directory: DataDir) -> None:
    """Bytes with right digests that are not this part are refused: other rows, another table, no Parquet."""
    table = three_partitions(directory)
    directory.create_table(4, "other", pa.schema([("x", pa.int64())]))
    [other] = directory.insert(5, {"default.other": pa.table({"x": [1]})})
    with directory.sql() as db:
        db.execute("UPDATE parts SET rows = 2 WHERE part = ?", (table.parts[0].part,))
        db.execute(
            "UPDATE parts SET (file, offset, length, blocks) = "
            "(SELECT file, offset, length, blocks FROM parts WHERE part = ?) WHERE part = ?",
            (other.part, table.parts[1].part),
        )
    for part, problem in zip(
        directory.parts(T), ("1 rows, the catalog says 2", "no column 'n'"), strict=False
    ):
        table = Scanned(directory, table.schema)
        table.parts = [part]
        error = table.fails(["n"])
        assert isinstance(error, CorruptError)
        assert problem in error.message


@pytest.mark.parametrize(("state", "kind"), [("quarantined", CorruptError), ("wanted", StandbyError)])
def test_a_part_that_is_not_held(directory: DataDir, state: str, kind: type[TidelockError]) -> None:
    """A missing part, or one known to be damaged, fails the scan; another replica may have it."""
    table = three_partitions(directory)
    with directory.sql() as db:
        db.execute("UPDATE parts SET state = ? WHERE path = 'p=b'", (state,))
    table.parts = directory.parts(T)
    assert isinstance(table.fails(), kind)
    assert table.rows(["n"], pc.field("p") == "a").to_pydict() == {"n": [1]}


#: Conditions of users, for every kind of filter that DuckDB passes on; `{0}` is a value of the column.
CONDITIONS = (
    *("{c} = {v}", "{c} <> {v}", "{c} < {v}", "{c} <= {v}", "{c} > {v}", "{c} >= {v}", "NOT ({c} < {v})"),
    *(
        "{c} IS NULL",
        "{c} IS NOT NULL",
        "{c} IN ({v}, {w})",
        "{c} NOT IN ({v}, {w})",
        "{c} BETWEEN {v} AND {w}",
    ),
    *("{c} = {v} OR {c} IS NULL", "{c} IS DISTINCT FROM {v}", "NOT ({c} > {v} AND {c} < {w})"),
)
TYPES = {
    "c_boolean": "BOOLEAN",
    "c_tinyint": "TINYINT",
    "c_smallint": "SMALLINT",
    "c_int": "INTEGER",
    "c_bigint": "BIGINT",
    "c_float": "FLOAT",
    "c_double": "DOUBLE",
    "c_decimal": "DECIMAL(9,2)",
    "c_decimal_18": "DECIMAL(18,18)",
    "c_decimal_38": "DECIMAL(38,0)",
    "c_string": "VARCHAR",
    "c_binary": "BLOB",
    "c_date": "DATE",
    "c_timestamp": "TIMESTAMPTZ",
    "c_timestamp_ntz": "TIMESTAMP",
}
PARTITIONED = ("c_boolean", "c_tinyint", "c_int", "c_bigint", "c_decimal", "c_date")


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=batches(), data=st.data())
def test_pushed_filters_mean_what_duckdb_means(
    tmp_path_factory: pytest.TempPathFactory, batch: pa.RecordBatch, data: st.DataObject
) -> None:
    """Any filter gives the rows that DuckDB finds in memory, whatever was pruned: nulls, NaN, -0."""
    specials = [{"c_float": value, "c_double": value} for value in (float("nan"), -0.0, 0.0, float("inf"))]
    rows = pa.Table.from_batches([batch, pa.RecordBatch.from_pylist(specials, schema=batch.schema)])
    partition_by = data.draw(st.lists(st.sampled_from(PARTITIONED), max_size=2, unique=True))
    directory = DataDir(tmp_path_factory.mktemp("scan") / "data")
    schema = directory.create_table(2, "t", rows.schema, partition_by=partition_by)
    directory.insert(3, {T: rows}, row_group_rows=data.draw(st.sampled_from([1, 3, 1000])))
    scanned = Scanned(directory, schema)
    column = data.draw(st.sampled_from(sorted(TYPES)))
    values = [value for value in rows[column].to_pylist() if value is not None] or [None]
    chosen = [data.draw(st.sampled_from(values)) for _ in range(2)]
    template = data.draw(st.sampled_from(CONDITIONS))
    text = template.format(c=column, v=f"$1::{TYPES[column]}", w=f"$2::{TYPES[column]}")
    statement = f"SELECT {column}, c_bigint, count(*) FROM {{}} WHERE {text} GROUP BY ALL ORDER BY ALL"
    params = chosen[: 1 + ("$2" in text)] if "$" in text else []
    with duckdb.connect() as db:
        db.register("scanned", scanned.table)
        db.register("in_memory", rows)
        db.execute("CREATE TABLE loaded AS FROM in_memory")
        found = db.execute(statement.format("scanned"), params).fetchall()
        expected = db.execute(statement.format("loaded"), params).fetchall()
    assert repr(_one_zero(found)) == repr(_one_zero(expected))


def _one_zero(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows with 0.0 for -0.0: both are in one group, and the order decides which one represents it."""
    return [tuple(value + 0.0 if isinstance(value, float) else value for value in row) for row in rows]


def test_a_condition_that_fails_condemns_no_part(directory: DataDir) -> None:
    """A statement can be impossible to evaluate; the parts that it reads are not damaged by that."""
    rows = pa.table({"n": [1, 2, 0]})
    schema = directory.create_table(2, "t", rows.schema)
    directory.insert(3, {T: rows})
    condition = pc.divide(pc.scalar(6), pc.field("n")) == 3
    error = Scanned(directory, schema).fails(["n"], condition)
    assert isinstance(error, BadRequestError)
    assert "part" not in error.details
