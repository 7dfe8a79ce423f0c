"""Deletes, updates, merges, compaction and derived rows: effects and results, compared with DuckDB."""

from __future__ import annotations

import base64
import datetime as dt
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.replicas.datadir import DataDir
from tests.support.replicas.mutations import Row, after, as_rows, run, stream_file
from tests.support.rows import batches
from tidelock.csnlog.core.ids import PartId, TableId
from tidelock.errors import (
    BadRequestError,
    CorruptError,
    SchemaMismatchError,
    SerializationConflictError,
    UnknownTableError,
)
from tidelock.part_layout import FloatColumns
from tidelock.replica_agent.sql import plan
from tidelock.replica_agent.sql.expressions import Expressions
from tidelock.replica_agent.sql.mutation import (
    CompactParts,
    DeleteRows,
    DerivedRows,
    MergeRows,
    UpdateRows,
)
from tidelock.wire.statements import Literal, Value

T = TableId("default.t")
SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int64()), ("v", pa.int32()), ("s", pa.string())])
#: Four parts: partitions a (two of them), b and null; values of k do not overlap.
PARTS = (
    {"p": ["a", "a"], "k": [1, 2], "v": [10, None], "s": ["x", "y"]},
    {"p": ["a", "a"], "k": [11, 12], "v": [30, 40], "s": [None, "y"]},
    {"p": ["b", "b", "b"], "k": [21, 22, 23], "v": [50, 60, None], "s": ["x", "x", "z"]},
    {"p": [None], "k": [31], "v": [70], "s": ["q"]},
)


class World:
    """The table `t`, the same rows in DuckDB, and `u` with one row more."""

    def __init__(
        self, path: Path, partition_by: Sequence[str] = ("p",), *, row_group_rows: int = 1 << 20
    ) -> None:
        self.path = path
        self.directory = DataDir(path / "data")
        self.directory.create_table(2, "t", SCHEMA, partition_by=partition_by)
        self.directory.create_table(2, "ns.u", pa.schema([("k", pa.int64())]))
        self.parts: list[PartId] = []
        for number, content in enumerate(PARTS):
            rows: dict[str, pa.Table] = {T: pa.table(content, SCHEMA)}
            made = self.directory.insert(3 + number, rows, row_group_rows=row_group_rows)
            self.parts += [part.part for part in made]
        self.directory.insert(7, {"ns.u": pa.table({"k": [12]}, pa.schema([("k", pa.int64())]))})
        self.twin = duckdb.connect()
        whole = pa.concat_tables([pa.table(content, SCHEMA) for content in PARTS])
        self.twin.from_arrow(whole).create("t")
        self.twin.execute("CREATE SCHEMA ns; CREATE TABLE ns.u AS SELECT 12::BIGINT AS k")

    def expected(self, statement: str, params: Sequence[Any] = ()) -> Counter[Row]:
        """Return the rows after statements of DuckDB, which are rolled back."""
        self.twin.execute("BEGIN")
        try:
            self.twin.execute(statement, list(params)).fetchall()
            return as_rows(self.twin.sql("FROM t").to_arrow_table())
        finally:
            self.twin.execute("ROLLBACK")

    def file(self, rows: pa.Table) -> str:
        """Write rows into a file, as the agent keeps them."""
        return stream_file(self.path / "source", rows)


@pytest.fixture(scope="module", params=[1 << 20, 1], ids=["one row group", "a row group for each row"])
def world(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> World:
    """Return the tables, for tests that do not change them."""
    made = World(tmp_path_factory.mktemp("world"), row_group_rows=request.param)
    made.twin.from_arrow(SOURCE).create("source")
    return made


@pytest.fixture
def own(tmp_path: Path) -> World:
    """Return the tables, for a test that changes them."""
    return World(tmp_path)


# -- delete --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "params", "parts"),
    [
        ("k = 2", (), [0]),
        ("k = ?", (2,), [0]),
        ("v > ? AND s = $$x$$", (10,), [2]),
        ("v > $1 or v = $1 - 30", (60,), [1, 3]),
        ("p = 'a'", (), [0, 1]),
        ("p IS NULL", (), [3]),
        ("v IS NULL", (), [0, 2]),
        ("v <> 10", (), [1, 2, 3]),
        ("NULL", (), []),
        ("k IN (SELECT k FROM ns.u)", (), [1]),
        ("EXISTS (SELECT 1 FROM t AS o WHERE o.k = t.k + 1)", (), [0, 1, 2]),
        ("k = (SELECT max(k) FROM t)", (), [3]),
        ("true -- ) all", (), [0, 1, 2, 3]),
        ("1", (), [0, 1, 2, 3]),
        ("k > 1000", (), []),
    ],
)
def test_delete_takes_rows_where_it_is_true(
    world: World, where: str, params: tuple[Any, ...], parts: list[int]
) -> None:
    """Rows for which the predicate is true are deleted, NULL is not true; only their parts are affected."""
    before = world.expected("SELECT 1")
    expected = world.expected(f"DELETE FROM t WHERE {where}\n", params)
    done = run(world.directory, "t", DeleteRows(where, params))
    assert after(world.directory, "t", done) == expected
    assert set(done.affected.parts) == {world.parts[number] for number in parts}
    gone = (before - expected).total()
    assert (done.ended.rows_deleted, done.ended.rows_updated, done.affected.rows_matched) == (gone, 0, gone)


def test_only_row_groups_with_such_rows_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups without such a row are kept; those that have such rows only are dropped."""
    directory = DataDir(tmp_path / "data")
    rows = pa.table({"k": range(100)}, pa.schema([("k", pa.int64())]))
    directory.create_table(2, "many", rows.schema)
    [part] = directory.insert(3, {"default.many": rows}, row_group_rows=10)
    done = run(directory, "many", DeleteRows("k BETWEEN 15 AND 31"))
    assert done.affected.kept == {part.part: (0, 4, 5, 6, 7, 8, 9)}
    assert done.rows["k"].to_pylist() == [*range(10, 15), *range(32, 40)]
    assert (done.ended.rows_deleted, after(directory, "many", done).total()) == (17, 83)
    done = run(directory, "many", DeleteRows("k >= 90"))
    assert (done.affected.kept, done.rows.num_rows) == ({part.part: tuple(range(9))}, 0)
    done = run(directory, "many", UpdateRows({"k": "-k"}, "k = 55"))
    assert done.affected.kept == {part.part: (0, 1, 2, 3, 4, 6, 7, 8, 9)}
    assert done.rows["k"].to_pylist() == [50, 51, 52, 53, 54, -55, 56, 57, 58, 59]
    done = run(directory, "many", DeleteRows("k = 5"), cut_part_bytes_min=part.length + 1)
    assert (done.affected.kept, done.rows.num_rows) == ({}, 99)
    monkeypatch.setattr(plan, "GROUPS_MAX", 9)
    done = run(directory, "many", DeleteRows("k = 5"))
    assert (done.affected.kept, done.rows.num_rows) == ({}, 99)


@given(st.data(), batches(rows_min=1), st.sets(st.integers(0, 30)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_any_rows_in_any_row_groups(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, batch: pa.RecordBatch, chosen: set[int]
) -> None:
    """Rows of all types, of which some are deleted or get another number, in row groups of any size."""
    directory = DataDir(tmp_path_factory.mktemp("any") / "data")
    rows = pa.Table.from_batches([batch]).append_column("n", pa.array(range(len(batch))))
    directory.create_table(2, "t", rows.schema)
    size = data.draw(st.integers(1, len(batch)))
    directory.insert(3, {"default.t": rows}, row_group_rows=size)
    where = f"n IN ({', '.join(map(str, [-1, *sorted(chosen)]))})"
    gone = chosen & set(range(len(batch)))
    done = run(directory, "t", DeleteRows(where))
    assert after(directory, "t", done) == as_rows(rows.filter([n not in gone for n in range(len(batch))]))
    assert done.ended.rows_deleted == len(gone)
    done = run(directory, "t", UpdateRows({"n": "-1 - n"}, where))
    numbers = pa.array([-1 - n if n in gone else n for n in range(len(batch))])
    assert after(directory, "t", done) == as_rows(rows.set_column(rows.num_columns - 1, "n", numbers))
    assert done.ended.rows_updated == len(gone)


def test_statistics_rule_parts_out(own: World) -> None:
    """A part without such a row by its statistics is not even opened."""
    for number in (0, 2, 3):
        own.directory.flip_bit(own.directory.part(own.parts[number]), 10)
    done = run(own.directory, "t", DeleteRows("k BETWEEN 5 AND 11"))
    assert done.affected.parts == (own.parts[1],)
    with pytest.raises(CorruptError):
        run(own.directory, "t", DeleteRows("v BETWEEN 5 AND 11"))


def test_a_volatile_predicate_does_not_tear_a_row(own: World) -> None:
    """A row is deleted or kept exactly once, however the predicate judges it."""
    rows = pa.table({"k": range(20_000)}, pa.schema([("k", pa.int64())]))
    own.directory.create_table(8, "many", rows.schema)
    own.directory.insert(9, {"default.many": rows})
    done = run(own.directory, "many", DeleteRows("random() < 0.5"))
    assert done.rows.num_rows + done.ended.rows_deleted == 20_000
    assert len(set(done.rows["k"].to_pylist())) == done.rows.num_rows
    done = run(own.directory, "many", UpdateRows({"k": "-1 - k"}, "random() < 0.5"))
    values = done.rows["k"].to_pylist()
    assert sorted(-1 - value if value < 0 else value for value in values) == list(range(20_000))
    assert done.ended.rows_updated == sum(value < 0 for value in values)


def test_what_was_read_is_told(world: World) -> None:
    """Partitions that their values excluded are named; other tables were read as a whole."""
    done = run(world.directory, "t", DeleteRows("p = 'b' AND k IN (SELECT k FROM ns.u)"))
    assert done.ended.reads == {T: ["p=__HIVE_DEFAULT_PARTITION__", "p=a"], "ns.u": None}
    assert run(world.directory, "t", DeleteRows("k = 1")).ended.reads == {T: None}


# -- update --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "where", "params", "statement", "parts"),
    [
        ({"v": "v + 1"}, "k < 12", (), "v = v + 1", [0, 1]),
        ({"v": "?", "s": "s || ?"}, "k = ?", (7, "!", 21), "v = 7, s = s || '!'", [2]),
        ({"s": "? -- ?\n"}, "k = ?", ("é", 21), "s = 'é'", [2]),
        ({"v": "$2", "s": "$3"}, "k = $1", (21, 7, "?"), "v = 7, s = '?'", [2]),
        ({"v": Literal(5), "s": "upper(s)"}, "k = ?", (21,), "v = 5, s = upper(s)", [2]),
        ({"v": Literal(None)}, None, (), "v = NULL", [0, 1, 2, 3]),
        ({"v": "k", "k": "v"}, "v IS NOT NULL", (), "v = k, k = v", [0, 1, 2, 3]),
        ({"p": "'c'"}, "p = 'b' AND v > 50", (), "p = 'c'", [2]),
        ({"p": Literal(None), "v": "length(p)"}, "k = 1", (), "p = NULL, v = length(p)", [0]),
        ({"v": "(SELECT max(v) FROM t)"}, "v IS NULL", (), "v = (SELECT max(v) FROM t)", [0, 2]),
        ({"v": "(SELECT count(*) FROM t o WHERE o.p = t.p)"}, None, (),
         "v = (SELECT count(*) FROM t o WHERE o.p = t.p)", [0, 1, 2, 3]),
        ({"v": "1.6"}, "k = 1", (), "v = 1.6", [0]),
        ({"v": "'12'", "s": "12"}, "k = 1", (), "v = '12', s = 12", [0]),
    ],
)  # fmt: skip
def test_update_changes_only_rows_where_it_is_true(
    world: World,
    values: dict[str, Value],
    where: str | None,
    params: tuple[Any, ...],
    statement: str,
    parts: list[int],
) -> None:
    """Rows for which it is true get new values in the columns' types; other rows stay unchanged."""
    condition = "" if where is None else f" WHERE {where}".replace("?", "21").replace("$1", "21")
    expected = world.expected(f"UPDATE t SET {statement}{condition}")
    done = run(world.directory, "t", UpdateRows(values, where, params))
    assert after(world.directory, "t", done) == expected
    assert set(done.affected.parts) == {world.parts[number] for number in parts}
    assert done.ended.rows_updated == done.affected.rows_matched > 0
    assert (done.ended.rows_deleted, done.ended.rows_inserted) == (0, 0)


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ({"v": "v + 2147483647"}, "v"),
        ({"v": "9999999999"}, "v"),
        ({"v": "'many'"}, "v"),
        ({"s": "s", "v": "k * 1000000000"}, "v"),
        ({"nope": "1"}, "nope"),
    ],
)
def test_values_that_do_not_fit(world: World, values: dict[str, Value], column: str) -> None:
    """The error names the column."""
    with pytest.raises((SchemaMismatchError, BadRequestError), match=rf"\b{column}\b"):
        run(world.directory, "t", UpdateRows(values))


@pytest.mark.parametrize(
    "expression",
    [
        *("1) FROM t; DROP VIEW t; --", "1)", "(1", "1 /*", "v, k", "v AS k", "v k", "k: v", "v FROM t", "*"),
        *("t.*", "COLUMNS(*)", "1 LIMIT 1", "1 UNION SELECT 2", "1 WHERE true", "DISTINCT v", "", "--", "v;"),
        *("v; v", "?", "$1", "$x", "#1", "1 WINDOW w AS ()", "1" + "+1" * 5000),
        *("'it is", "$$ x", "(SELECT * FROM read_text('x'))", "EXISTS (FROM duckdb_settings())"),
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_what_is_not_one_expression(expression: str) -> None:
    """An expression of another form is refused before it is put into a statement."""
    with duckdb.connect() as connection, pytest.raises(BadRequestError):
        Expressions(connection, (), ()).parse(expression, "where")


@pytest.mark.parametrize(
    "expression",
    ["1) FROM t; --", "count(*)", "sum(v) OVER ()", "unnest([1, 2])", "nope", "nope(v)", "DEFAULT"],
)
def test_what_is_not_one_value_of_one_row(world: World, expression: str) -> None:
    """Such a new value, predicate or merge expression is refused before any work."""
    source = world.file(pa.table({"k": [1]}, pa.schema([("k", pa.int64())])))
    actions = (
        UpdateRows({"v": expression}),
        DeleteRows(expression),
        MergeRows(source, ("k",), update={"v": expression}),
        MergeRows(source, ("k",), delete=expression),
        MergeRows(source, ("k",), insert={"v": expression}),
    )
    for action in actions:
        with pytest.raises(BadRequestError):
            run(world.directory, "t", action)


def test_surplus_and_mixed_parameters_are_a_mistake(world: World) -> None:
    """Parameters that no expression uses are an error, and so are two notations in one statement."""
    for where, params in (("k = ?", (1, 2)), ("k = $2", (1, 2)), ("k = ? OR k = $1", (1, 2)), ("true", (1,))):
        with pytest.raises(BadRequestError, match="parameter"):
            run(world.directory, "t", DeleteRows(where, params))


@settings(deadline=None, max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=batches(rows_min=1), other=batches(rows_min=1, rows_max=1))
def test_values_of_all_types_pass_unchanged(
    tmp_path_factory: pytest.TempPathFactory, batch: pa.RecordBatch, other: pa.RecordBatch
) -> None:
    """Values of every type pass unchanged, and can be given as literals and by a merge."""
    path = tmp_path_factory.mktemp("types")
    rows = pa.Table.from_batches([batch]).append_column("id", pa.array(range(batch.num_rows), pa.int64()))
    directory = DataDir(path / "data")
    directory.create_table(2, "t", rows.schema, partition_by=["c_date", "c_decimal"], sort_by=["id"])
    directory.insert(3, {T: rows})
    new = other.to_pylist()[0]
    literals: dict[str, Value] = {name: _literal(value) for name, value in new.items()}
    done = run(directory, "t", UpdateRows(literals, "id % 2 = 0"))
    wanted = [row | new if row["id"] % 2 == 0 else row for row in rows.to_pylist()]
    assert after(directory, "t", done) == as_rows(pa.Table.from_pylist(wanted, rows.schema))
    source = pa.Table.from_pylist([new | {"id": 0}, new | {"id": -1}], rows.schema)
    action = MergeRows(stream_file(path / "source", source), ("id",), update=True, insert=True, upsert=True)
    done = run(directory, "t", action)
    wanted = [*source.to_pylist(), *(row for row in rows.to_pylist() if row["id"] != 0)]
    assert after(directory, "t", done) == as_rows(pa.Table.from_pylist(wanted, rows.schema))
    parts = tuple(part.part for part in directory.parts(T))
    done = run(directory, "t", CompactParts(parts))
    assert as_rows(done.rows) == as_rows(rows)
    assert done.rows["id"].to_pylist() == sorted(rows["id"].to_pylist())
    assert done.affected.floats == FloatColumns.of(rows)


def _literal(value: Any) -> Literal:
    match value:
        case bytes():
            return Literal(base64.b64encode(value).decode(), base64=True)
        case Decimal():
            return Literal(f"{value:f}")
        case dt.date() | dt.time():
            return Literal(str(value))
        case _:
            return Literal(value)


# -- merge ---------------------------------------------------------------------------------------------------

SOURCE = pa.table(
    {
        "p": ["a", "b", "c", None, "z"],
        "k": [2, 22, 100, 31, None],
        "v": [-1, -2, -3, -4, -5],
        "s": ["n", "n", "n", "n", "n"],
        "op": ["u", "d", "u", "d", "u"],
    },
    pa.schema([*SCHEMA, ("op", pa.string())]),
)


UPSERT = {"update": True, "insert": True, "upsert": True}
UPDATED = "UPDATE t SET p = s.p, v = s.v, s = s.s FROM source AS s WHERE t.k = s.k"
INSERTED = "INSERT INTO t SELECT p, k, v, s FROM source WHERE k = 100 OR k IS NULL"


def test_upsert_replaces_known_keys_and_inserts_others(world: World) -> None:
    """Source rows replace rows with the same key, all others are inserted; null is not a key."""
    expected = world.expected(
        "DELETE FROM t WHERE k IN (2, 22, 31); INSERT INTO t VALUES ('a', 2, -1, 'n'), ('b', 22, -2, 'n'), "
        "('c', 100, -3, 'n'), (NULL, 31, -4, 'n'), ('z', NULL, -5, 'n')"
    )
    action = MergeRows(world.file(SOURCE.drop("op")), ("k",), update=True, insert=True, upsert=True)
    done = run(world.directory, "t", action)
    assert after(world.directory, "t", done) == expected
    assert set(done.affected.parts) == {world.parts[0], world.parts[2], world.parts[3]}
    assert (done.affected.rows_matched, done.affected.rows_to_insert) == (3, 2)
    assert (done.ended.rows_deleted, done.ended.rows_updated, done.ended.rows_inserted) == (0, 3, 2)
    assert done.affected.keys == (2, 100)


@pytest.mark.parametrize(
    ("action", "expected", "parts"),
    [
        ({"update": True}, UPDATED, [0, 2, 3]),
        (
            {"update": {"v": "target.v + source.v * ?", "s": "op"}, "params": (2,)},
            "UPDATE t SET v = t.v + x.v * 2, s = op FROM source AS x WHERE t.k = x.k",
            [0, 2, 3],
        ),
        ({"delete": "op = 'd' AND target.v < ?", "params": (65,)}, "DELETE FROM t WHERE k = 22", [2]),
        (
            {"update": True, "delete": "op = ?", "insert": True, "params": ("d",)},
            f"{UPDATED}; DELETE FROM t WHERE k IN (22, 31); {INSERTED}",
            [0, 2, 3],
        ),
        (
            {"insert": {"k": "source.k + ?", "p": Literal("w")}, "params": (1,)},
            "INSERT INTO t SELECT 'w', k + 1, NULL, NULL FROM source WHERE k = 100 OR k IS NULL",
            [],
        ),
        ({"delete": "NULL"}, "SELECT 1", []),
    ],
)  # fmt: skip
def test_merge_updates_deletes_and_inserts_as_asked(
    world: World, action: dict[str, Any], expected: str, parts: list[int]
) -> None:
    """Matching rows are updated, or deleted where a condition is true; others are inserted on request."""
    wanted = world.expected(expected)
    done = run(world.directory, "t", MergeRows(world.file(SOURCE), ("k",), **action))
    assert after(world.directory, "t", done) == wanted
    assert set(done.affected.parts) == {world.parts[number] for number in parts}


@pytest.mark.parametrize("on", [("k",), ("p", "k"), ("p",), ("s",), ("v", "p")])
def test_merge_finds_all_matches(world: World, on: tuple[str, ...]) -> None:
    """Every matching row is found, whatever the keys of the source prune."""
    rows = pa.table({"p": ["a", "b"], "k": [12, 23], "v": [40, None], "s": ["y", "z"]}, SCHEMA)
    keys = ", ".join(f"t.{name}" for name in on)
    texts = "('a', 12, 40, 'y'), ('b', 23, NULL, 'z')"
    among = f"SELECT {', '.join(on)} FROM (VALUES {texts}) AS x(p, k, v, s)"
    wanted = world.expected(f"DELETE FROM t WHERE ({keys}) IN ({among})")
    done = run(world.directory, "t", MergeRows(world.file(rows), on, delete="true"))
    assert after(world.directory, "t", done) == wanted


def test_merge_prunes_parts_without_its_keys(own: World) -> None:
    """Partitions and parts that cannot have a key of the source are not opened."""
    for number in (1, 2, 3):
        own.directory.flip_bit(own.directory.part(own.parts[number]), 10)
    rows = pa.table({"p": ["a", None], "k": [1, None], "v": [1, 1], "s": ["", ""]}, SCHEMA)
    for on, left_out in ((("p", "k"), ["p=__HIVE_DEFAULT_PARTITION__", "p=b"]), (("k",), None)):
        done = run(own.directory, "t", MergeRows(own.file(rows), on, update=True))
        assert done.affected.parts == (own.parts[0],)
        assert done.ended.reads == {T: left_out}


@pytest.mark.parametrize("on", [("k",), ("p", "k"), ("s",)])
def test_a_merge_gives_the_rows_of_the_engines_own_merge(world: World, on: tuple[str, ...]) -> None:
    """A merge makes the rows that the MERGE INTO of DuckDB makes, also for keys with nulls (ADR 0017)."""
    same = " AND ".join(f"target.{name} = source.{name}" for name in on)
    columns = ", ".join(SCHEMA.names)
    expected = world.expected(
        f"MERGE INTO t AS target USING source ON {same} WHEN MATCHED AND op = 'd' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET v = source.v WHEN NOT MATCHED THEN INSERT ({columns}) "
        f"VALUES ({', '.join(f'source.{name}' for name in SCHEMA.names)})"
    )
    insert: dict[str, Value] = {name: f"source.{name}" for name in SCHEMA.names}
    action = MergeRows(world.file(SOURCE), on, update={"v": "source.v"}, delete="op = 'd'", insert=insert)
    assert after(world.directory, "t", run(world.directory, "t", action)) == expected


def test_a_merge_takes_nan_for_equal_to_nan_as_the_engine_does(own: World) -> None:
    """A key that is NaN matches the row whose key is NaN."""
    schema = pa.schema([("x", pa.float64()), ("v", pa.int32())])
    own.directory.create_table(8, "f", schema)
    own.directory.insert(9, {"default.f": pa.table({"x": [1.0, float("nan"), None], "v": [1, 2, 3]}, schema)})
    rows = pa.table({"x": [float("nan"), None], "v": [-2, -3]}, schema)
    action = MergeRows(own.file(rows), ("x",), update=True, insert=True)
    done = run(own.directory, "f", action)
    assert (done.ended.rows_updated, done.ended.rows_inserted) == (1, 1)
    assert sorted(done.rows["v"].to_pylist()) == [-3, -2, 1, 3]


def test_several_rows_for_one(world: World) -> None:
    """Source rows with one key are refused when they match a row, and always in an upsert."""
    rows = pa.table({"p": ["a"] * 3, "k": [500, 500, 1], "v": [1, 2, 3], "s": [""] * 3}, SCHEMA)
    with pytest.raises(BadRequestError, match="k=500") as caught:
        run(world.directory, "t", MergeRows(world.file(rows), ("k",), update=True, insert=True, upsert=True))
    assert caught.value.details["key"] == {"k": "500"}
    done = run(world.directory, "t", MergeRows(world.file(rows), ("k",), update=True, insert=True))
    assert done.ended.rows_inserted == 2
    rows = rows.set_column(1, "k", pa.array([2, 2, None], pa.int64()))
    both: tuple[dict[str, Any], ...] = ({"update": True}, {"delete": "false"})
    for what in both:
        with pytest.raises(BadRequestError, match="k=2"):
            run(world.directory, "t", MergeRows(world.file(rows), ("k",), **what))
    run(world.directory, "t", MergeRows(world.file(rows), ("k",), insert=True))


@pytest.mark.parametrize(
    ("rows", "action", "error", "text"),
    [
        ({"k": [1]}, {"insert": True}, SchemaMismatchError, "lack columns .*: p, v, s"),
        ({"k": ["1"]}, {"update": {"v": "1"}}, SchemaMismatchError, "k is string"),
        ({"v": [1]}, {"update": True}, BadRequestError, "on='k' is not a column of both"),
        ({"k": [1], "K": [2]}, {"update": True}, BadRequestError, "twice"),
        ({"k": [1], "#tidelock:row": [2]}, {"update": True}, BadRequestError, "begins with #tidelock:"),
        ({"k": [1]}, {}, BadRequestError, "needs"),
        ({"k": [1]}, {"update": {"v": "9999999999"}}, SchemaMismatchError, "column v"),
        ({"k": [1], "x": [1]}, UPSERT, SchemaMismatchError, "missing"),
    ],
)  # fmt: skip
def test_merges_that_are_refused(
    world: World, rows: dict[str, list[Any]], action: dict[str, Any], error: type[Exception], text: str
) -> None:
    """Rows or values that do not fit are refused with the name of their column."""
    with pytest.raises(error, match=text):
        run(world.directory, "t", MergeRows(world.file(pa.table(rows)), ("k",), **action))


@pytest.mark.parametrize("cut", [1, 8, 9, 300])
def test_a_source_that_was_cut(world: World, cut: int) -> None:
    """A source that is not exactly one complete stream is refused, wherever it ends."""
    path = Path(world.file(SOURCE.drop("op")))
    whole = path.read_bytes()
    for content in (whole[:-cut], whole + b"x" * cut, b""):
        path.write_bytes(content)
        with pytest.raises(BadRequestError, match="complete Arrow IPC stream"):
            run(world.directory, "t", MergeRows(str(path), ("k",), update=True, insert=True))


# -- compaction and derived rows -----------------------------------------------------------------------------


def test_compaction_sorts_all_rows_of_its_parts(own: World) -> None:
    """All rows of the parts are returned sorted; the error for a missing part names it."""
    content = pa.table(
        {"k": [3, 1, None, 2], "v": [1, 2, 3, 4]}, pa.schema([("k", pa.int64()), ("v", pa.int32())])
    )
    own.directory.create_table(8, "s", content.schema, sort_by=["k"])
    parts = [own.directory.insert(9 + number, {"default.s": content})[0].part for number in range(3)]
    done = run(own.directory, "s", CompactParts(tuple(parts[:2])))
    assert done.rows["k"].to_pylist() == [1, 1, 2, 2, 3, 3, None, None]
    assert as_rows(done.rows) == as_rows(pa.concat_tables([content, content]))
    assert set(done.affected.parts) == set(parts[:2])
    own.directory.remove(12, parts[1])
    with pytest.raises(SerializationConflictError) as gone:
        run(own.directory, "s", CompactParts(tuple(parts[:2])))
    assert gone.value.details["part"] == parts[1]


def test_derived_rows_come_by_name_or_position(own: World) -> None:
    """A SELECT over given parts of another table becomes rows of the table, by name or by position."""
    own.directory.create_table(8, "sums", pa.schema([("p", pa.string()), ("n", pa.int32())]))
    sql = "SELECT count(*) AS n, p FROM inserted JOIN t USING (p, k) GROUP BY p; -- done"
    done = run(own.directory, "sums", DerivedRows(sql, source=T, parts=tuple(own.parts[:3])))
    assert as_rows(done.rows) == Counter({("a", 4): 1, ("b", 3): 1})
    assert (done.affected.parts, done.ended.rows_inserted) == ((), 2)
    done = run(own.directory, "sums", DerivedRows("SELECT max(k) + ? FROM t", (1,), columns=("n",)))
    assert as_rows(done.rows) == Counter({(None, 32): 1})


@pytest.mark.parametrize(
    ("sql", "columns", "text"),
    [
        ("SELECT 1 AS n", None, "column p is missing"),
        ("SELECT 1 AS n, 'x' AS p, 2 AS x", None, "column x is not in the table"),
        ("SELECT 1, 2", ("n",), "2 columns for 1"),
        ("SELECT 1, 2", ("n", "n"), "n comes more than once"),
        ("SELECT 1", ("x",), "column x is not in the table"),
        ("SELECT 'many'", ("n",), "column n .* many"),
        ("SELECT 9999999999", ("n",), "column n .* 9999999999"),
        ("DELETE FROM t", ("n",), "single SELECT"),
        ("SELECT 1; SELECT 2", ("n",), "single SELECT"),
    ],
)
def test_derived_rows_that_do_not_fit(
    own: World, sql: str, columns: tuple[str, ...] | None, text: str
) -> None:
    """The error names the column, or the finding."""
    own.directory.create_table(8, "sums", pa.schema([("p", pa.string()), ("n", pa.int32())]))
    with pytest.raises((SchemaMismatchError, BadRequestError), match=text):
        run(own.directory, "sums", DerivedRows(sql, columns=columns))


@pytest.mark.parametrize(("table", "where"), [("nope", "true"), ("t", "k IN (SELECT k FROM nope)")])
def test_tables_that_do_not_exist(world: World, table: str, where: str) -> None:
    """The error names a missing table, whether it is changed or in an expression."""
    with pytest.raises(UnknownTableError, match="nope"):
        run(world.directory, table, DeleteRows(where))
