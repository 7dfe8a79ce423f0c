"""Generated columns of a definition: what they are judged by, and what changes of columns they allow."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidelock.csnlog.core.ids import TableId
from tidelock.errors import BadRequestError, SchemaMismatchError
from tidelock.replica_agent.tables.checks import Check, Generated, name_of
from tidelock.replica_agent.tables.column_changes import ColumnChanges, changed
from tidelock.replica_agent.tables.schema import ColumnLimits, TableSchema, columns_in

ARROW = pa.schema(
    [
        ("n", pa.int32()),
        ("m", pa.int64()),
        pa.field("twice", pa.int64(), metadata={"generated": "n * 2", "comment": "two"}),
    ]
)


def table(**more: str) -> TableSchema:
    """Return a table whose generated column reads n, with these checks."""
    made = TableSchema.from_request("t", ARROW, checks=more)
    return made.with_checked({name_of(3): ["n"], **{name: ["m"] for name in more}})


def added(sql: str | None, kind: pa.DataType | None = None) -> ColumnChanges:
    """Return the addition of a column g."""
    metadata = {} if sql is None else {"generated": sql}
    schema = pa.schema([pa.field("g", kind or pa.int64(), nullable=sql is None, metadata=metadata)])
    return ColumnChanges(add=columns_in(schema, "t"))


def test_a_definition_keeps_its_generated_columns() -> None:
    """With the ids of the columns that they read; they are conditions behind the checks."""
    made = table(positive="m > 0")
    assert TableSchema.from_definition(TableId("default.t"), made.definition()) == made
    column = made.definition()["columns"][2]
    assert (column["generated"], column["reads"], column["comment"]) == ("n * 2", [1], "two")
    assert made.conditions == (
        Check("positive", "m > 0", (2,)),
        Generated(name_of(3), "n * 2", (3, 1), "twice"),
    )
    assert [one.what for one in made.conditions] == ["check positive", "generated column twice"]
    assert not table().is_plain


def test_rows_may_come_without_them() -> None:
    """Other columns are still asked for."""
    table().check(pa.schema([("n", pa.int32()), ("m", pa.int64())]))
    with pytest.raises(SchemaMismatchError, match="column m"):
        table().check(pa.schema([("n", pa.int32()), ("twice", pa.int64())]))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (ColumnChanges(drop=["n"]), "generated column twice is made by n . 2"),
        (ColumnChanges(rename={"n": "k"}), "generated column twice"),
        (ColumnChanges(types={"n": "bigint"}), "another type"),
        (ColumnChanges(default={"twice": "1"}), "is generated"),
        (ColumnChanges(generated={"n": None}), "n is no generated column .*; it has: twice"),
        (ColumnChanges(generated={"m": "n"}), "rows have brought its values"),
        (ColumnChanges(add=added("n").add, generated={"g": "n" * 5000}), "5000 bytes of SQL"),
    ],
    ids=str,
)
def test_a_change_that_its_sql_does_not_allow(change: ColumnChanges, problem: str) -> None:
    """The error names the column and what to do."""
    with pytest.raises(BadRequestError, match=problem):
        changed(table(), change, ColumnLimits())


@pytest.mark.parametrize("sql", ["", "n" * 5000])
def test_sql_has_a_length(sql: str) -> None:
    """The limit is that of checks."""
    with pytest.raises(BadRequestError, match=r"bytes of SQL; expected 1 to 4096 \(check_bytes_max\)"):
        added(sql)


def test_changes_that_leave_its_sql_right() -> None:
    """It may be renamed and dropped, with what it reads; then it is a column as any other."""
    renamed = changed(table(), ColumnChanges(rename={"twice": "double"}, drop=["m"]))
    assert [(one.name, one.generated) for one in renamed.columns] == [("n", None), ("double", "n * 2")]
    assert [one.name for one in changed(table(), ColumnChanges(drop=["twice", "n"])).columns] == ["m"]
    plain = changed(table(), ColumnChanges(generated={"twice": None}))
    assert (plain.conditions, plain.columns[2].reads) == ((), ())
    assert not ColumnChanges(generated={"twice": None}).rewrite(table())
    freed = changed(table(), ColumnChanges(generated={"twice": None}, types={"n": "bigint"}))
    assert [one.generated for one in freed.columns] == [None] * 3


def test_a_new_one_under_the_name_of_another() -> None:
    """The other one, which is renamed in the same change, stays generated; it is judged for none of that."""
    change = ColumnChanges(rename={"twice": "double"}, add=added("m").add, generated={"g": "m"})
    made = changed(table(), change)
    assert [one.generated for one in made.columns] == [None, None, "n * 2", "m"]
    swapped = columns_in(pa.schema([pa.field("twice", pa.int64())]), "t")
    change = ColumnChanges(rename={"twice": "double"}, add=swapped, generated={"twice": "n * 3"})
    assert [one.generated for one in changed(table(), change).columns] == [None, None, "n * 2", "n * 3"]
    assert not changed(table(), ColumnChanges(rename={"twice": "double"})).checks_to_judge(table())


def test_the_rows_that_are_there_are_written_again() -> None:
    """For a new one, which may be required; its condition is one that they do not satisfy yet."""
    change = added("m + 1")
    assert change.rewrite(table())
    made = changed(table(), change)
    assert [one.name for one in made.checks_to_judge(table())] == [name_of(4)]
    with pytest.raises(BadRequestError, match="leave out its default"):
        columns_in(pa.schema([pa.field("g", pa.int64(), metadata={"generated": "n", "default": "1"})]), "t")


@pytest.mark.parametrize("properties", [{"unique_key": "twice"}, {"landing": "on"}])
def test_tables_that_have_none(properties: dict[str, str]) -> None:
    """A key is what rows bring, and rows that land are seen by no SQL."""
    fields = [field.with_nullable(nullable=False) for field in ARROW]
    with pytest.raises(BadRequestError, match="generated"):
        TableSchema.from_request("t", pa.schema(fields), properties=properties)
