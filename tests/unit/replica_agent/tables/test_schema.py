"""The schema of a table: allowed definitions, rows that fit, and the forms that other engines read."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from tests.support.rows import ALL_TYPES, batches
from tidelock.column_types import to_arrow
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.errors import BadRequestError, SchemaMismatchError, TooLargeError, UnsupportedTypeError
from tidelock.replica_agent.tables.names import full_name, no_table
from tidelock.replica_agent.tables.schema import ColumnLimits, Derivation, TableSchema

EVERYTHING = pa.schema(list(ALL_TYPES.items()))
SMALL = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("year", pa.int32()),
    ]
)

#: Columns of which the first one cannot be a folder.
BEGINS_WITH_DOT = {
    "arrow_schema": pa.schema([(".x", pa.int8()), ("y", pa.int8())]),
    "partition_by": [".x"],
    "sort_by": [],
}


def small(**changes: Any) -> TableSchema:
    """A table of four columns, partitioned by `year`."""
    request: dict[str, Any] = {
        "name": "t",
        "arrow_schema": SMALL,
        "partition_by": ["year"],
        "sort_by": ["id"],
    }
    return TableSchema.from_request(**(request | changes))


# -- definitions


@pytest.mark.parametrize("namespace", ["information_schema", "memory", "pg_catalog", "system", "temp"])
def test_reserved_namespaces_of_sql_are_refused(namespace: str) -> None:
    """A namespace that SQL takes for something else would make its tables unreadable: refused."""
    with pytest.raises(BadRequestError, match="reserved for SQL"):
        full_name(f"{namespace}.t")


def test_a_definition_survives_json() -> None:
    """A schema, its definition as JSON, and the schema read back are the same."""
    schema = TableSchema.from_request(
        "sales.everything", EVERYTHING, ["c_date"], ["c_bigint", "c_string"], {"compaction": "off"}
    )
    assert TableSchema.from_definition(schema.id, json.loads(json.dumps(schema.definition()))) == schema


def test_the_definition_is_what_the_protocol_says() -> None:
    """The definition has the fields and the type names of docs/protocol.md#bytes."""
    assert small().definition() == {
        "name": "default.t",
        "columns": [
            {"name": "id", "type": "bigint", "nullable": False, "id": 1},
            {"name": "name", "type": "string", "nullable": True, "id": 2},
            {"name": "at", "type": "timestamp", "nullable": True, "id": 3},
            {"name": "year", "type": "int", "nullable": True, "id": 4},
        ],
        "partition_by": ["year"],
        "sort_by": ["id"],
        "properties": {},
    }
    types = [column.type for column in TableSchema.from_request("t", EVERYTHING).columns]
    assert types == [
        *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double"),
        *("decimal(9,2)", "decimal(18,18)", "decimal(38,0)"),
        *("string", "binary", "date", "time", "timestamp", "timestamp_ntz"),
    ]


@pytest.mark.parametrize("kind", ["float", "double", "binary"])
def test_types_that_cannot_be_keys(kind: str) -> None:
    """A type whose values are not equal in every engine alike is no part of a unique key."""
    arrow = pa.schema([pa.field("k", EVERYTHING.field(f"c_{kind}").type, nullable=False), ("v", pa.int8())])
    with pytest.raises(BadRequestError, match=f"k is {kind}"):
        TableSchema.from_request("t", arrow, properties={"unique_key": "k"})


def test_keys_and_derivations_survive_the_log() -> None:
    """The unique key, the source and the dependents of a table are read back from its definition."""
    arrow = pa.schema([pa.field("a", pa.int64(), False), pa.field("b", pa.string(), False), ("v", pa.int8())])
    keyed = {"unique_key": "b, a", "on_duplicate": "replace"}
    made = TableSchema.from_request("t", arrow, ["b"], properties=keyed)
    derived = dataclasses.replace(
        made, derivation=Derivation(TableId("default.s"), "select 1"), dependents=(TableId("default.d1"),)
    )
    for schema in (made, derived):
        assert TableSchema.from_definition(schema.id, json.loads(json.dumps(schema.definition()))) == schema
    assert (made.unique_key, made.replaces) == (("b", "a"), True)
    assert derived.definition().keys() - made.definition().keys() == {
        "derived_from", "derived_sql", "dependents",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given_name", "full"),
    [("orders", "default.orders"), ("sales.orders", "sales.orders"), ("0", "default.0")],
)
def test_a_name_without_namespace_is_in_default(given_name: str, full: str) -> None:
    """A name without a namespace is in `default`."""
    assert full_name(given_name) == full


@pytest.mark.parametrize(
    "name", ["", ".", ".t", "n.", "a.b.c", "T", "_t", "n._t", "a-b", "a b", "tür", "t/..", "t\n", "x" * 129]
)
def test_bad_table_names_are_refused(name: str) -> None:
    """A name that cannot be a folder that every engine lists is refused."""
    with pytest.raises(BadRequestError, match="is not a table name"):
        full_name(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrow_schema": pa.schema([])}, "no column"),
        ({"arrow_schema": pa.schema([("a\nb", pa.int8())])}, "'a.*b' .* holds U\\+000A"),
        ({"arrow_schema": pa.schema([("", pa.int8())])}, "'' of table default.t is empty"),
        ({"arrow_schema": pa.schema([("ä" * 128, pa.int8())])}, "has 256 bytes; the limit is 255"),
        ({"arrow_schema": pa.schema([("Ä", pa.int8()), ("ä", pa.int8())])}, "Ä twice"),
        (
            BEGINS_WITH_DOT,
            "partitioned by .x: Spark does not see folders",
        ),
        ({"arrow_schema": pa.schema([("a", pa.int8()), ("A", pa.int8())])}, "a twice"),
        ({"arrow_schema": pa.schema([("_commit_csn", pa.int8())])}, "reserved"),
        ({"partition_by": ["nope"]}, "partition_by .* nope.*id, name, at, year"),
        ({"partition_by": ["year", "year"]}, "year twice"),
        ({"partition_by": ["at"]}, "cannot be partitioned by at .*time zone"),
        ({"sort_by": ["nope"]}, "sort_by .* nope"),
        ({"sort_by": ["id", "id"]}, "id twice"),
        ({"sort_by": ["year"]}, "year.*leave it out"),
        ({"arrow_schema": pa.schema([("year", pa.int32())]), "sort_by": []}, "all columns"),
        ({"properties": {"colour": "red"}}, "unknown property 'colour'; known are comment, compaction"),
        ({"properties": {"compaction": "maybe"}}, "'maybe', not on or off"),
        ({"properties": {"unique_key": "id,year", "on_duplicate": "keep"}}, "'keep', not refuse or replace"),
        ({"properties": {"on_duplicate": "refuse"}}, "on_duplicate without a column"),
        ({"properties": {"unique_key": " , "}}, "unique_key without a column"),
        ({"properties": {"unique_key": "id,id"}}, "names id twice"),
        ({"properties": {"unique_key": "nope"}}, "nope is not a column; .* id, name, at, year"),
        ({"properties": {"unique_key": "name"}}, "name may hold nulls"),
        ({"properties": {"unique_key": "id"}}, "partition column year is not in it"),
    ],
)
def test_bad_requests_are_refused_with_the_right_form(changes: dict[str, Any], message: str) -> None:
    """Each mistake in a request is refused by name, with what would be right."""
    with pytest.raises(BadRequestError, match=message):
        small(**changes)


@pytest.mark.parametrize("kind", ["c_float", "c_double", "c_binary", "c_timestamp", "c_timestamp_ntz"])
def test_types_that_cannot_be_folders(kind: str) -> None:
    """A type without one text for each value is refused as a partition column."""
    with pytest.raises(BadRequestError, match=f"cannot be partitioned by {kind}"):
        TableSchema.from_request("t", EVERYTHING, [kind])


def test_too_many_columns_are_refused_with_both_figures() -> None:
    """The bound on columns is a setting, and the error carries both figures."""
    with pytest.raises(TooLargeError) as caught:
        small(limits=ColumnLimits(columns=3))
    assert caught.value.details == {"limit": 3, "found": 4}


@pytest.mark.parametrize(
    ("arrow", "use"),
    [
        (pa.duration("us"), "int64"),
        (pa.month_day_nano_interval(), "int64"),
        (pa.decimal256(40, 2), "decimal128"),
        (pa.decimal128(10, -2), "decimal128"),
        (pa.null(), "the type that the column will hold"),
        (pa.list_(pa.duration("us")), "int64"),
        (pa.list_(pa.null()), "the type that the column will hold"),
        (pa.struct([]), "a struct with fields"),
        (
            pa.struct([("a", pa.int8()), ("A", pa.int8())]),
            "other names of fields: a struct has field a twice",
        ),
        (pa.struct([("a\n", pa.int8())]), "other names of fields"),
        (pa.map_(pa.float64(), pa.string()), "keys of another type: NaN and -0.0"),
        (pa.map_(pa.list_(pa.int8()), pa.string()), "keys of another type: keys are no arrays"),
        (pa.dense_union([pa.field("a", pa.int64())]), "one column for each field"),
        (pa.uuid(), "string"),
    ],
    ids=str,
)
def test_types_outside_the_list(arrow: pa.DataType, use: str) -> None:
    """A type that not all engines read alike is refused, with the one to use instead."""
    with pytest.raises(UnsupportedTypeError) as caught:
        TableSchema.from_request("t", pa.schema([("c", arrow)]))
    assert f"use {use}" in caught.value.message
    assert caught.value.details["column"] == "c"


@pytest.mark.parametrize(
    ("arrow", "text"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary(16), "binary"),
        (pa.decimal64(10, 2), "decimal(10,2)"),
        (pa.decimal256(38, 2), "decimal(38,2)"),
        (pa.uint8(), "smallint"),
        (pa.uint16(), "int"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float"),
        (pa.date64(), "date"),
        (pa.timestamp("ns"), "timestamp_ntz"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.timestamp("ms", tz="UTC"), "timestamp"),
        (pa.timestamp("us", tz="Europe/Berlin"), "timestamp"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.dictionary(pa.int8(), pa.uint16()), "int"),
        (pa.run_end_encoded(pa.int32(), pa.int64()), "bigint"),
        (pa.json_(), "string"),
    ],
    ids=str,
)
def test_types_that_are_stored_as_another_one(arrow: pa.DataType, text: str) -> None:
    """Another layout of a type is that type; another type gets the one that has its values."""
    assert TableSchema.from_request("t", pa.schema([("c", arrow)])).columns[0].type == text


@pytest.mark.parametrize(
    "text", ["", "integer", "decimal(39,0)", "decimal(5,6)", "decimal(0,0)", "decimal(5)"]
)
def test_unknown_names_of_types_are_refused(text: str) -> None:
    """A type name that no definition can hold is refused."""
    with pytest.raises(BadRequestError, match="is not a column type"):
        to_arrow(text)


# -- forms


def test_partition_columns_are_not_in_the_files() -> None:
    """The files hold all columns but those of the partitions; Arrow shows all."""
    schema = small()
    assert schema.arrow.names == ["id", "name", "at", "year"]
    assert schema.file_arrow.names == ["id", "name", "at"]
    assert [column.name for column in schema.partition_columns] == ["year"]


def test_arrow_bytes_are_an_ipc_schema() -> None:
    """Clients read the schema back from its IPC message."""
    assert pa.ipc.read_schema(pa.py_buffer(small().arrow_bytes())) == SMALL


def test_common_metadata_is_a_parquet_file_without_rows() -> None:
    """The virtual `_common_metadata` shows all columns of the table, those of the partitions included."""
    schema = TableSchema.from_request("t", EVERYTHING, ["c_date"])
    file = pq.ParquetFile(pa.BufferReader(schema.common_metadata()))
    assert file.metadata.num_rows == 0
    assert file.metadata.num_row_groups == 0
    assert file.schema_arrow.equals(EVERYTHING)


# -- rows


def test_every_misfit_is_named() -> None:
    """Missing, surplus, doubled and wrong columns are all named at once, with expected and found types."""
    found = pa.schema(
        [("id", pa.string()), ("name", pa.string()), ("name", pa.string()), ("colour", pa.string())]
    )
    with pytest.raises(SchemaMismatchError) as caught:
        small().check(found)
    assert caught.value.details == {
        "table": "default.t",
        "missing": ["at", "year"],
        "extra": ["colour"],
        "doubled": ["name"],
        "wrong": [{"column": "id", "expected": "bigint", "found": "string"}],
    }
    for word in ("at (timestamp) is missing", "colour is not in", "id is string, expected bigint (int64)"):
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("column", "arrow"),
    [
        ("c_string", pa.binary()),
        ("c_binary", pa.string()),
        ("c_boolean", pa.int8()),
        ("c_bigint", pa.string()),
        ("c_date", pa.timestamp("us", tz="UTC")),
        ("c_timestamp", pa.timestamp("us")),
        ("c_timestamp_ntz", pa.timestamp("us", tz="UTC")),
        ("c_decimal", pa.float64()),
        ("c_string", pa.dictionary(pa.int8(), pa.int64())),
    ],
    ids=str,
)
def test_other_types_are_refused(column: str, arrow: pa.DataType) -> None:
    """A type of another meaning is refused, whatever the values are."""
    schema = TableSchema.from_request("t", pa.schema([(column, ALL_TYPES[column])]))
    with pytest.raises(SchemaMismatchError) as caught:
        schema.check(pa.schema([(column, arrow)]))
    assert caught.value.details["wrong"][0]["found"] == str(arrow)


AT = dt.datetime(2024, 2, 29, 12, 30, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("column", "given_values", "expected"),
    [
        ("c_string", pa.array(["a", None], pa.large_string()), ["a", None]),
        ("c_string", pa.array(["a", None], pa.string_view()), ["a", None]),
        ("c_string", pa.array(["a", None]).dictionary_encode(), ["a", None]),
        ("c_binary", pa.array([b"a", None], pa.large_binary()), [b"a", None]),
        ("c_binary", pa.array([b"a", None], pa.binary_view()), [b"a", None]),
        ("c_decimal", pa.array([Decimal("1.25"), None], pa.decimal64(9, 2)), [Decimal("1.25"), None]),
        ("c_timestamp", pa.array([AT, None], pa.timestamp("s", tz="Asia/Tokyo")), [AT, None]),
        ("c_timestamp_ntz", pa.array([AT, None], pa.timestamp("ms")), [AT.replace(tzinfo=None), None]),
        ("c_double", pa.nulls(2), [None, None]),
        ("c_bigint", pa.array([7, None], pa.int32()), [7, None]),
        ("c_bigint", pa.array([7.0, None]), [7, None]),
        ("c_int", pa.array([7, None], pa.uint64()), [7, None]),
        ("c_timestamp_ntz", pa.array([AT, None], pa.timestamp("ns")), [AT.replace(tzinfo=None), None]),
        ("c_decimal", pa.array([7, None]), [Decimal("7.00"), None]),
    ],
    ids=str,
)
def test_harmless_variants_are_taken(column: str, given_values: pa.Array, expected: list[Any]) -> None:
    """Another layout, width, unit or zone of the same values fits, and comes out with the table's type."""
    schema = TableSchema.from_request("t", pa.schema([(column, ALL_TYPES[column])]))
    batch = pa.RecordBatch.from_arrays([given_values], [column])
    schema.check(batch.schema)
    conformed = schema.conform(batch)
    assert conformed.schema.equals(schema.arrow)
    assert conformed.column(0).to_pylist() == expected


def test_columns_are_put_in_order() -> None:
    """Columns are matched by name; the order of the rows' schema does not matter."""
    schema = small()
    batch = pa.RecordBatch.from_pylist([{"year": 1, "at": AT, "name": "n", "id": 7}], schema=SMALL)
    shuffled = batch.select(["year", "name", "id", "at"])
    schema.check(shuffled.schema)
    assert schema.conform(shuffled).equals(batch)


def test_a_value_that_does_not_fit() -> None:
    """A timestamp that overflows in microseconds is refused, naming the column and the rows."""
    schema = TableSchema.from_request("t", pa.schema([("at", pa.timestamp("us"))]))
    batch = pa.RecordBatch.from_arrays([pa.array([0, 1 << 62], pa.timestamp("s"))], ["at"])
    with pytest.raises(SchemaMismatchError, match=r"no value equal to .* in row 11") as caught:
        schema.conform(batch, first_row=10)
    assert (caught.value.details["column"], caught.value.details["row"]) == ("at", 11)


def test_null_in_a_required_column() -> None:
    """A null in a required column is refused, naming the column and the row within the insert."""
    batch = pa.RecordBatch.from_pylist(
        [{"id": 1}, {"id": 2}, {"id": None}], schema=pa.schema([("id", pa.int64())])
    )
    schema = TableSchema.from_request("t", pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    schema.check(batch.schema)
    with pytest.raises(SchemaMismatchError) as caught:
        schema.conform(batch, first_row=100)
    assert caught.value.details == {"table": "default.t", "column": "id", "row": 102}


@given(batch=batches())
def test_rows_of_the_tables_types_stay_as_they_are(batch: pa.RecordBatch) -> None:
    """Conforming changes nothing about rows that have the table's types."""
    schema = TableSchema.from_request("t", batch.schema)
    schema.check(batch.schema)
    conformed = schema.conform(batch)
    assert conformed.schema.equals(batch.schema)
    assert repr(conformed.to_pylist()) == repr(batch.to_pylist())  # in which NaN is equal to NaN


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("default.plane", "did you mean default.planes?"),
        ("sales.orders", "did you mean default.orders?"),
        ("default.zebra", "`tidelock tables` lists them"),
    ],
)
def test_a_name_that_no_table_has_is_told_with_the_nearest_one(name: str, hint: str) -> None:
    """As options, columns and commands are; the namespace may be what is wrong."""
    error = no_table(name, Csn(7), ["default.planes", "default.orders"])
    assert f"there is no table {name} at CSN 7" in error.message
    assert hint in error.message
    assert (error.details["table"], error.details["csn"]) == (name, 7)


def test_a_wrong_name_is_not_compared_with_thousands_of_tables() -> None:
    """The comparison of 10,000 names takes 0.4 s of the event loop; the same name elsewhere costs nothing."""
    many = [f"default.planes_{i}" for i in range(10_000)]
    assert "did you mean" not in no_table("default.planes_x", Csn(7), many).message
    assert "did you mean default.planes_9?" in no_table("sales.planes_9", Csn(7), many).message
