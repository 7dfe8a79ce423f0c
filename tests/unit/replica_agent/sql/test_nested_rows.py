"""Arrays, structs and maps in parts: scanned, filtered, changed, merged and told by the change feed."""

from __future__ import annotations

import io
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.nested import DEEP, DEEP_ARROW, meaning, nested_batches
from tests.support.replicas.datadir import DataDir
from tests.support.replicas.mutations import config, run, stream_file
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.errors import BadRequestError, SchemaMismatchError, TidelockError
from tidelock.part_layout import FloatColumns, form_of, mark, parquet_options
from tidelock.replica_agent.sql.changes import ChangedRows
from tidelock.replica_agent.sql.engine import Engine
from tidelock.replica_agent.sql.mutation import CompactParts, DeleteRows, DerivedRows, MergeRows, UpdateRows
from tidelock.replica_agent.sql.reading import query
from tidelock.replica_agent.sql.request import ChangesRequest, SqlRequest
from tidelock.replica_agent.sql.session import SqlSession
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.tables.statistics import statistics_of

NAN = math.nan
ROWS: list[dict[str, Any] | None] = [
    {"a": 1, "b c": [{"d": NAN, "t": ["x", None]}, None], "m": [("k", [NAN, None])], "e": None},
    None,
    {"a": None, "b c": [], "m": [], "e": None},
    {"a": 2, "b c": None, "m": None, "e": None},
    {"a": 3, "b c": [{"d": -0.0, "t": []}], "m": [("", []), ("z", None)], "e": None},
]


def select(directory: DataDir, sql: str) -> pa.Table:
    """Return the rows of a query at the newest CSN."""
    request = SqlRequest(Csn(directory.meta("snapshot_csn")), None, sql)
    with closing(SqlSession(Engine(config(directory)), request)) as session:
        try:
            return query(session, request).read_all()
        except TidelockError:
            raise
        except Exception as error:
            raise session.translate(error) from error


def deep(path: Path) -> tuple[DataDir, pa.Table]:
    """A table `t` with the columns `k` and `c`, in row groups of two rows, and its rows."""
    directory = DataDir(path / "data")
    rows = pa.table({"k": range(len(ROWS)), "c": pa.array(ROWS, DEEP_ARROW)})
    directory.create_table(2, "t", rows.schema)
    directory.insert(3, {"default.t": rows}, row_group_rows=2)
    return directory, rows


@given(batch=nested_batches(), size=st.integers(1, 8), chosen=st.sets(st.integers(0, 8)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
def test_any_rows_are_scanned_changed_and_told(
    tmp_path_factory: pytest.TempPathFactory, batch: pa.RecordBatch, size: int, chosen: set[int]
) -> None:
    """Rows of any nested types, in any row groups, are equal after a scan or change, and in the feed."""
    directory = DataDir(tmp_path_factory.mktemp("nested") / "data")
    rows = pa.Table.from_batches([batch]).append_column("n", pa.array(range(len(batch))))
    directory.create_table(2, "t", rows.schema)
    directory.insert(3, {"default.t": rows}, row_group_rows=size)
    assert meaning(select(directory, "FROM t ORDER BY n").cast(rows.schema)) == meaning(rows)
    for condition in ("c0 IS NULL", "c0 IS NOT NULL"):
        wanted = [(row["c0"] is None) == (condition == "c0 IS NULL") for row in rows.to_pylist()]
        found = select(directory, f"SELECT * FROM t WHERE {condition} ORDER BY n").cast(rows.schema)
        assert meaning(found) == meaning(rows.filter(wanted))
    where = f"n IN ({', '.join(map(str, [-1, *sorted(chosen)]))})"
    done = run(directory, "t", UpdateRows({"n": "-1 - n"}, where), cut_part_bytes_min=1 << 30)
    kept = {row["n"]: repr((row["c0"], row["c1"])) for row in done.rows.to_pylist()}
    for row in rows.to_pylist() if done.rows.num_rows else []:
        number = -1 - row["n"] if row["n"] in chosen else row["n"]
        assert kept[number] == repr((row["c0"], row["c1"]))
    request = ChangesRequest(Csn(3), Csn(2), TableId("default.t"), 3)
    with closing(SqlSession(Engine(config(directory)), request)) as session:
        changed = ChangedRows(session, request)
        told = pa.Table.from_batches(changed.batches(), changed.schema)
    assert meaning(told.select(rows.column_names).sort_by("n")) == meaning(rows)


def test_the_change_feed_counts_nested_rows_by_their_bits(tmp_path: Path) -> None:
    """Rows that a commit replaces by equal ones are no changes, NaN and the two zeros included."""
    directory, rows = deep(tmp_path)
    (old,) = directory.parts("default.t")
    other = rows.set_column(1, "c", pa.array([*ROWS[:4], ROWS[0]], DEEP_ARROW))
    directory.insert(4, {"default.t": other})
    directory.remove(4, old.part)
    request = ChangesRequest(Csn(4), Csn(3), TableId("default.t"), 3)
    with closing(SqlSession(Engine(config(directory)), request)) as session:
        changed = ChangedRows(session, request)
        told = pa.Table.from_batches(changed.batches(), changed.schema).to_pylist()
    assert [(row["_change_type"], row["k"], repr(row["c"])) for row in told] == [
        ("delete", 4, repr(ROWS[4])),
        ("insert", 4, repr(ROWS[0])),
    ]


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        ("c.a = 1", [0]),
        ("c.a > 1", [3, 4]),
        ("c.a IS NULL", [1, 2]),
        ("c IS NULL", [1]),
        ("c IS NOT NULL AND c.a IS NULL", [2]),
        ('c."b c"[1].d = 0', [4]),
        ('isnan(c."b c"[1].d)', [0]),
        ('len(c."b c") = 0', [2]),
        ("c.m['z'] IS NULL AND map_contains(c.m, 'z')", [4]),
        ("k >= 3 AND c.a < 3", [3]),
    ],
)
def test_rows_are_found_by_the_values_inside(tmp_path: Path, where: str, keys: list[int]) -> None:
    """Conditions about fields are right, whatever the engine gives to the scan, in queries and in deletes."""
    directory, rows = deep(tmp_path)
    assert select(directory, f"SELECT k FROM t WHERE {where} ORDER BY k")["k"].to_pylist() == keys
    done = run(directory, "t", DeleteRows(where))
    assert done.ended.rows_deleted == len(keys)
    left = [
        row
        for row in rows.to_pylist()
        if row["k"] // 2 in {key // 2 for key in keys} and row["k"] not in keys
    ]
    assert meaning(done.rows.sort_by("k")) == [repr(row) for row in left]


def test_new_values_of_nested_columns_are_cast_or_refused(tmp_path: Path) -> None:
    """By the names of fields; what does not fit fails, and no field is left out in silence."""
    directory, _ = deep(tmp_path)
    done = run(directory, "t", UpdateRows({"c": "{'m': map {'x': [1, NULL]}, 'A': k}"}, "k = 1"))
    (new,) = [row["c"] for row in done.rows.to_pylist() if row["k"] == 1]
    assert new == {"a": 1, "b c": None, "m": [("x", [1.0, None])], "e": None}
    with pytest.raises(SchemaMismatchError, match="the field z; leave it out"):
        run(directory, "t", UpdateRows({"c": "{'a': 1, 'z': 2}"}))
    with pytest.raises(BadRequestError, match="Could not convert string 'x'"):
        run(directory, "t", UpdateRows({"c": "{'a': 'x'}"}))
    with pytest.raises(SchemaMismatchError, match="the field z"):
        run(directory, "t", DerivedRows("SELECT 9 AS k, {'z': 1, 'a': 2} AS c", (), None))
    derived = run(directory, "t", DerivedRows("SELECT k, c FROM t WHERE k = 0", (), None))
    assert meaning(derived.rows) == [repr({"k": 0, "c": ROWS[0]})]


def test_merges_take_nested_rows_and_no_nested_key(tmp_path: Path) -> None:
    """Rows of a source replace others with all that is inside of them; an array is no key."""
    directory, rows = deep(tmp_path)
    source = rows.slice(3, 2).set_column(0, "k", pa.array([0, 9]))
    done = run(
        directory, "t", MergeRows(stream_file(tmp_path / "s", source), ("k",), update=True, insert=True)
    )
    found = {row["k"]: repr(row["c"]) for row in done.rows.to_pylist()}
    assert (found[0], found[9]) == (repr(ROWS[3]), repr(ROWS[4]))
    with pytest.raises(BadRequestError, match=r"merged on c .struct.*are no keys"):
        run(directory, "t", MergeRows(stream_file(tmp_path / "s", source), ("c",), update=True))


def test_compaction_keeps_nested_rows(tmp_path: Path) -> None:
    """All rows of two parts come in the order of the table."""
    directory = DataDir(tmp_path / "data")
    rows = pa.table({"k": range(len(ROWS)), "c": pa.array(ROWS, DEEP_ARROW)})
    directory.create_table(2, "t", rows.schema, sort_by=["k"])
    made = directory.insert(3, {"default.t": rows.slice(3)}) + directory.insert(
        4, {"default.t": rows.slice(0, 3)}
    )
    done = run(directory, "t", CompactParts(tuple(part.part for part in made)))
    assert meaning(done.rows) == meaning(rows)


def test_footers_say_nothing_about_floats_inside(tmp_path: Path) -> None:
    """They have neither ranges nor dictionaries, even where a name with a dot has the path of a field."""
    arrow = pa.schema([("k", pa.int64()), ("c", DEEP_ARROW), ("c.a", pa.float64()), ("f", pa.float64())])
    rows = pa.table(
        {"k": range(2), "c": pa.array(ROWS[:2], DEEP_ARROW), "c.a": [NAN, 1.0], "f": [1.0, 2.0]}, schema=arrow
    )
    sink = io.BytesIO()
    options = parquet_options(2, small=True, schema=arrow, floats=FloatColumns.of(rows))
    with pq.ParquetWriter(sink, arrow, **options) as writer:
        writer.write_table(rows)
        mark(writer)
    metadata = pq.read_metadata(io.BytesIO(sink.getvalue()))
    chunks = [metadata.row_group(0).column(number) for number in range(metadata.num_columns)]
    hints = {
        number: (chunk.statistics is not None and chunk.statistics.has_min_max, chunk.has_dictionary_page)
        for number, chunk in enumerate(chunks)
        if chunk.physical_type in {"DOUBLE", "FLOAT"}
    }
    assert hints == {2: (False, False), 5: (False, False), 7: (False, False), 8: (True, True)}
    schema = TableSchema.from_request("t", arrow)
    assert statistics_of(metadata, schema) == {"k": [0, 1, 0], "f": [None, None, 0]}
    assert form_of(arrow) != form_of(pa.schema([*list(arrow)[:2], *list(arrow)[3:]]))
    assert [column.type for column in schema.columns][1] == DEEP
