"""Arrays, structs and maps as types of columns: their names, which values fit, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nested import DEEP, meaning, nested_batches, nested_types
from tidelock.casts import LossyCastError, cast, equal_but_nulls, may_fit, repeated_key, surplus_field
from tidelock.client.values.columns import schema_of
from tidelock.column_types import to_arrow, to_text
from tidelock.errors import BadRequestError, SchemaMismatchError, UnsupportedTypeError
from tidelock.parquet_leaves import first_leaves, is_of, leaf_paths
from tidelock.table_columns import Column, TableColumns
from tidelock.type_text import DEPTH_MAX, depth_of, leaves, parse

BIG = 1 << 40
PAIRS = pa.list_(pa.struct([("k", pa.large_string()), ("v", pa.int32())]))


@given(nested_types())
def test_the_name_of_a_type_is_read_back(arrow: pa.DataType) -> None:
    """Also as DDL, with spaces and capitals; its leaves are the columns of a file."""
    text = to_text("c", arrow)
    assert to_arrow(text) == arrow
    assert str(parse(text)) == text
    assert schema_of(f"x int, c {text} not null, y string").field("c") == pa.field("c", arrow, nullable=False)
    assert leaves(text) == len(list(leaf_paths([pa.field("c", arrow)])))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ARRAY < Long >", "array<bigint>"),
        ("struct<a int, `b c`: array<dec>>", "struct<a:int,`b c`:array<decimal(10,0)>>"),
        ('STRUCT<"x""y": map<String, decimal(5)>>', 'struct<`x"y`:map<string,decimal(5,0)>>'),
        ("map<int,struct<`a``b`:int>>", "map<int,struct<`a``b`:int>>"),
    ],
)
def test_types_as_users_write_them(text: str, name: str) -> None:
    """In any case, with or without colons, with Spark's other names, with quotes of either kind."""
    assert to_text("c", schema_of({"c": text}).field("c").type) == name


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("array", "expected '<'"),
        ("array<int", "expected '>'"),
        ("array<>", "expected a type, found '>'"),
        ("struct<>", "expected the name of a field, found '>'"),
        ("struct<a:int b:int>", "expected '>', found 'b:int>'"),
        ("struct<a:int not null>", "expected '>', found 'not null>'"),
        ("struct<a:int,A:int>", "field a twice"),
        ("map<int>", "expected ','"),
        ("map<double,int>", "no type of keys: NaN"),
        ("map<array<int>,int>", "no type of keys"),
        ("array<money>", "there is no type money"),
        ("struct<v:variant>", "there is no type variant; use string, with the check json_valid"),
        ("int>", "expected its end"),
        ("array<" * (DEPTH_MAX + 1), "types are inside each other"),
    ],
)
def test_text_that_is_no_type_is_refused(text: str, why: str) -> None:
    """The message says what was expected, and what was found there."""
    with pytest.raises(BadRequestError, match=why):
        schema_of({"c": text})


def test_the_limit_of_types_inside_each_other_is_kept() -> None:
    """The message names the setting."""
    arrow = to_arrow("array<struct<a:array<int>>>")
    assert depth_of(parse(to_text("c", arrow, 4))) == 4
    with pytest.raises(
        UnsupportedTypeError, match=r"4 types inside each other; the limit is 3 .nested_depth"
    ):
        to_text("c", arrow, 3)


@pytest.mark.parametrize(
    ("found", "values", "expected", "taken"),
    [
        (pa.large_list(pa.int8()), [[1, None], None, []], "array<bigint>", [[1, None], None, []]),
        (pa.list_view(pa.float64()), [[1.0], []], "array<int>", [[1], []]),
        (pa.list_(pa.int64(), 2), [[1, 2], None], "array<int>", [[1, 2], None]),
        (pa.list_(pa.null()), [[None], []], "array<string>", [[None], []]),
        (pa.list_(pa.dictionary(pa.int8(), pa.string())), [["a"], None], "array<string>", [["a"], None]),
        (
            *(pa.struct([("b", pa.int8()), ("a", pa.uint8())]), [{"b": 1, "a": 2}, None]),
            *("struct<a:int,b:bigint,c:string>", [{"a": 2, "b": 1, "c": None}, None]),
        ),
        (pa.map_(pa.string_view(), pa.int8()), [[("a", 1)], None], "map<string,int>", [[("a", 1)], None]),
        (PAIRS, [[{"k": "x", "v": 1}], [], None], "map<string,bigint>", [[("x", 1)], [], None]),
        (pa.null(), [None], "array<int>", [None]),
    ],
    ids=str,
)  # fmt: skip
def test_values_of_other_layouts_are_taken(
    found: pa.DataType, values: list[Any], expected: str, taken: list[Any]
) -> None:
    """Large lists, views, fixed sizes, dictionaries, other orders of fields, maps as lists of pairs."""
    arrow = to_arrow(expected)
    assert may_fit(arrow, found)
    array = pa.array(values, found)
    made = cast(array, arrow)
    made.validate(full=True)
    assert (made.type, made.to_pylist()) == (arrow, taken)
    assert cast(array[1:], arrow).to_pylist() == taken[1:]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pa.list_(pa.string()), "array<int>"),
        (pa.struct([("a", pa.int8()), ("z", pa.int8())]), "struct<a:int>"),
        (pa.struct([("A", pa.int8())]), "struct<a:int>"),
        (pa.int64(), "array<bigint>"),
        (pa.list_(pa.int64()), "bigint"),
        (pa.list_(pa.int64()), "map<bigint,bigint>"),
        (pa.map_(pa.int64(), pa.int64()), "array<struct<key:bigint,value:bigint>>"),
        (pa.struct([("a", pa.int8())]), "map<string,int>"),
    ],
    ids=str,
)
def test_other_shapes_are_not_taken(found: pa.DataType, expected: str) -> None:
    """A field that the column does not have would be lost, and a list is no value."""
    assert not may_fit(to_arrow(expected), found)


@settings(max_examples=30)
@given(nested_batches(columns=1))
def test_rows_of_the_type_itself_are_unchanged(batch: pa.RecordBatch) -> None:
    """A round trip through a layout of other names and large lists gives equal values."""
    kind = batch.schema.field(0).type
    table = TableColumns("default.t", (Column("c0", to_text("c0", kind)),))
    assert meaning(table.conform(batch)) == meaning(batch)
    other = batch.column(0).cast(_large(kind))
    assert meaning(pa.record_batch([cast(other, kind)], ["c0"])) == meaning(batch)


def _large(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_list(arrow):
        return pa.large_list(_large(arrow.value_type))
    if pa.types.is_struct(arrow):
        return pa.struct([field.with_type(_large(field.type)) for field in arrow])
    return pa.large_string() if arrow == pa.string() else arrow


@pytest.mark.parametrize(
    ("values", "found", "expected", "index", "text"),
    [
        ([[1], None, [], [2, 300]], pa.list_(pa.int64()), "array<tinyint>", 3, "300"),
        ([{"a": [1.0]}, {"a": [0.5]}], None, "struct<a:array<int>>", 1, "0.5"),
        ([[("a", 1)], [("c", BIG)]], pa.map_(pa.string(), pa.int64()), "map<string,int>", 1, str(BIG)),
    ],
)  # fmt: skip
def test_a_value_inside_that_has_no_equal_is_named(
    values: list[Any], found: pa.DataType | None, expected: str, index: int, text: str
) -> None:
    """By the position of the outermost value, which is the row."""
    with pytest.raises(LossyCastError) as caught:
        cast(pa.array(values, found), to_arrow(expected))
    assert (caught.value.index, caught.value.text) == (index, text)
    with pytest.raises(LossyCastError) as caught:
        cast(pa.array(values, found)[1:], to_arrow(expected))
    assert caught.value.index == index - 1


def test_a_value_behind_a_null_is_none() -> None:
    """Arrow may keep bytes where a null is; they are not looked at."""
    inner = pa.array([1 << 40, 1], pa.int64())
    hidden = pa.StructArray.from_arrays([inner], ["a"], mask=pa.array([True, False]))
    assert cast(hidden, to_arrow("struct<a:int>")).to_pylist() == [None, {"a": 1}]


@pytest.mark.parametrize(
    "kind",
    ["map<string,int>", "array<map<string,int>>", "struct<m:map<string,int>>", "map<int,map<string,int>>"],
)
def test_a_map_with_a_key_twice_is_refused(kind: str) -> None:
    """At any depth: DuckDB cannot read it, and Spark would show one of the values."""
    good, bad = [("a", 1), ("b", 1)], [("a", 1), ("a", 2)]
    wrap: dict[str, Callable[[Any], Any]] = {
        "array": lambda one: [one],
        "struc": lambda one: {"m": one},
        "map<i": lambda one: [(1, one)],
    }
    shape = wrap.get(kind[:5], lambda one: one)
    values = pa.array([None, shape(good), shape(good), shape(bad)], to_arrow(kind))
    assert repeated_key(values[:3]) is None
    assert repeated_key(values) == 3
    assert repeated_key(values[2:]) == 1
    table = TableColumns("default.t", (Column("m", kind),))
    with pytest.raises(SchemaMismatchError, match=r"column m .* row 13 .* a map that has a key twice"):
        table.conform(pa.record_batch([values], ["m"]), first_row=10)


def test_types_that_differ_in_nulls_alone_are_equal() -> None:
    """Spark and DuckDB declare what is inside of a column in their own ways."""
    strict = pa.struct([pa.field("a", pa.list_(pa.field("x", pa.int8(), nullable=False)), nullable=False)])
    assert equal_but_nulls(strict, to_arrow("struct<a:array<tinyint>>"))
    assert not equal_but_nulls(strict, to_arrow("struct<b:array<tinyint>>"))
    assert not equal_but_nulls(strict, to_arrow("struct<a:array<int>>"))
    assert equal_but_nulls(
        pa.map_(pa.int8(), pa.field("v", pa.int8(), False)), to_arrow("map<tinyint,tinyint>")
    )


def test_a_field_too_many_is_found_at_any_depth() -> None:
    """The engine would leave it out without an error."""
    kind = to_arrow("array<struct<a:int,m:map<int,struct<b:int>>>>")
    assert surplus_field(to_arrow("array<struct<A:int>>"), kind) is None
    assert surplus_field(to_arrow("array<struct<a:int,z:int>>"), kind) == "z"
    assert surplus_field(to_arrow("array<struct<m:map<int,struct<c:int>>>>"), kind) == "c"


def test_the_columns_of_files_are_found_by_their_paths() -> None:
    """One for each leaf, in the order of the file; a name with a dot may look like a field."""
    schema = schema_of(f"x int, c {DEEP}, `c.a` int")
    paths = [path for path, _ in leaf_paths(schema)]
    assert paths == [
        *("x", "c.a", "c.b c.list.element.d", "c.b c.list.element.t.list.element"),
        *("c.m.key_value.key", "c.m.key_value.value.list.element", "c.e", "c.a"),
    ]
    assert first_leaves(schema) == {"x": 0, "c": 1, "c.a": 7}
    assert [path for path in paths if is_of(path, {"c"})] == paths[1:]
    assert not is_of("cd.a", {"c"})


@given(st.text(max_size=30))
def test_any_text_is_a_type_or_refused(text: str) -> None:
    """No text makes the parser fail in another way."""
    try:
        tree = parse(text)
    except ValueError:
        return
    assert parse(str(tree)) == tree
