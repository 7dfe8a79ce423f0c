"""Rows that do not fit: the error has the class of the misfit, the column and the remedy (rule errors)."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.faults.refusals import ROWS, SCHEMA, Ground, command
from tidelock.errors import BadRequestError, SchemaMismatchError, UnknownTableError
from tidelock.exits import Exit


def changed(column: str, values: Any, type_: pa.DataType) -> pa.Table:
    """The rows with one column replaced."""
    return ROWS.set_column(ROWS.schema.get_field_index(column), column, pa.array(values, type_))


MISFITS = {
    "a column is missing": (ROWS.drop_columns(["price"]), "column price (decimal(9,2)) is missing"),
    "a column too many": (
        ROWS.append_column("colour", pa.array(["red", "blue"])),
        "column colour is not in the table",
    ),
    "a column twice": (
        pa.table([*ROWS.columns, ROWS["k"]], names=[*SCHEMA.names, "k"]),
        "column k comes more than once",
    ),
    "a name in capitals": (ROWS.rename_columns(["K", "name", "price"]), "column K is not in the table"),
    "a fraction for a whole number": (
        changed("k", [1.0, 2.5], pa.float64()),
        "column k",
        "is bigint, and has no value equal to 2.5 (double) in row 1",
    ),
    "text for a number": (changed("k", ["1", "2"], pa.string()), "column k is string, expected bigint"),
    "more digits": (
        changed("price", [Decimal("1.125"), None], pa.decimal128(9, 3)),
        "column price",
        "is decimal(9,2), and has no value equal to 1.125 (decimal128(9, 3)) in row 0",
    ),
    "a null where a value is required": (
        changed("k", [1, None], pa.int64()),
        "column k",
        "is required, but row 1 (from 0) holds a null",
        "give it a value",
    ),
    "a column of nulls where values are required": (
        changed("k", [None, None], pa.null()),
        "is required, but row 0",
    ),
}


@pytest.mark.parametrize(
    ("rows", "words"), [(rows, words) for rows, *words in MISFITS.values()], ids=[*MISFITS]
)
def test_rows_that_do_not_fit(ground: Ground, rows: pa.Table, words: list[str]) -> None:
    """The error says what was expected; rows that were staged before it go with the transaction."""
    error = ground.refuses_statement(
        lambda tx: tx.insert(ground.table, rows), SchemaMismatchError, ground.table, *words
    )
    assert error.details["table"] == f"default.{ground.table}"
    assert not error.retriable


def test_all_misfits_are_named_at_once(ground: Ground) -> None:
    """The error lists every column that must change, as text and as data."""
    rows = changed("k", ["1", "2"], pa.string()).drop_columns(["name"]).append_column("x", pa.array([1, 2]))
    error = ground.refuses_statement(
        lambda tx: tx.insert(ground.table, rows),
        SchemaMismatchError,
        *("column name (string) is missing", "column x is not in the table", "column k is string"),
        "insert them with the table's columns",
    )
    assert (error.details["missing"], error.details["extra"]) == (["name"], ["x"])
    assert error.details["wrong"] == [{"column": "k", "expected": "bigint", "found": "string"}]


def test_a_null_far_behind_the_first_batch(ground: Ground) -> None:
    """A large insert is refused at its last row as well, and leaves no part on any replica."""
    count = 300_000
    rows = pa.table(
        {
            "k": pa.array([*range(count - 1), None], pa.int64()),
            "name": pa.array(["x" * 10] * count),
            "price": pa.nulls(count, pa.decimal128(9, 2)),
        }
    )
    ground.refuses_statement(
        lambda tx: tx.insert(ground.table, rows),
        SchemaMismatchError,
        f"row {count - 1} (from 0) holds a null",
    )


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        (lambda tx: tx.insert("nowhere", ROWS), "default.nowhere"),
        (lambda tx: tx.insert("other.nowhere", ROWS), "other.nowhere"),
        (lambda tx: tx.read("nowhere"), "default.nowhere"),
        (lambda tx: tx.scan("nowhere").count(), "default.nowhere"),
        (lambda tx: tx.scan("nowhere").to_batches(), "default.nowhere"),
    ],
    ids=["insert", "insert elsewhere", "read", "count", "batches"],
)
def test_unknown_table_in_a_transaction(ground: Ground, statement: Any, word: str) -> None:
    """Inserts and reads of a table that does not exist fail the transaction, at its home too."""
    error = ground.refuses_statement(statement, UnknownTableError, f"there is no table {word}", "at CSN")
    assert error.details["csn"] <= ground.db.seen_csn


@pytest.mark.parametrize("table", ["Orders", "a.b.c", "", "x-y", "../up", "ü"])
def test_what_is_no_table_name(ground: Ground, table: str) -> None:
    """A name that no table can have is told apart from a table that does not exist."""
    ground.refuses_statement(
        lambda tx: tx.read(table), BadRequestError, "is not a table name", "each of a-z, 0-9 and _"
    )


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ({"columns": ["colour"]}, ["colour"]),
        ({"columns": []}, ["asks for no column", "leave `columns` out"]),
        ({"where": "k >"}, ["cannot be run", "syntax error"]),
        ({"where": "k < ?", "params": []}, ["cannot be run"]),
        ({"where": "1 = 1) UNION ALL SELECT (1"}, ["cannot be run"]),
    ],
    ids=["column", "no column", "syntax", "parameter", "injection"],
)
def test_reads_that_ask_for_nonsense(ground: Ground, read: dict[str, Any], words: list[str]) -> None:
    """A wrong column or condition is refused with the reason, and fails the transaction."""
    ground.refuses_statement(lambda tx: tx.read(ground.table, **read), BadRequestError, *words)


def test_a_mistyped_table_is_told_with_the_one_that_is_meant(ground: Ground) -> None:
    """Whichever way it is read, and where only its namespace is wrong."""
    meant = f"did you mean default.{ground.table}?"
    typo = f"{ground.table}s"
    with ground.db.snapshot() as snap:
        for name, read in (
            (f"default.{typo}", lambda: snap.read(typo)),
            (f"default.{typo}", lambda: snap.table(typo)),
            (f"default.{typo}", lambda: snap.sql(f"SELECT * FROM {typo}")),
            (f"default.{typo}", lambda: snap.sql(f"SELECT * FROM {typo.upper()}")),
            (f"sales.{ground.table}", lambda: snap.sql(f"SELECT * FROM sales.{ground.table}")),
            (f"sales.{ground.table}", lambda: ground.db.insert(f"sales.{ground.table}", ROWS)),
        ):
            with ground.refuses(UnknownTableError, f"there is no table {name} at CSN", meant):
                read()


def test_unknown_table_of_a_snapshot(ground: Ground) -> None:
    """Every way to read a snapshot refuses the unknown table; the snapshot stays usable."""
    with ground.db.snapshot() as snap:
        for read in (
            lambda: snap.read("nowhere"),
            lambda: snap.scan("nowhere").count(),
            lambda: snap.table("nowhere"),
            lambda: snap.path("nowhere"),
            lambda: snap.sql("SELECT * FROM nowhere"),
            lambda: snap.sql(f"SELECT k FROM {ground.table} JOIN other.nowhere USING (k)"),
        ):
            with ground.refuses(UnknownTableError, "there is no table", "nowhere", f"at CSN {snap.csn}"):
                read()
        assert snap.read(ground.table).num_rows == ROWS.num_rows


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO {table} VALUES (3, 'c', NULL)",
        "DELETE FROM {table}",
        "DROP TABLE {table}",
        "SELECT 1; SELECT 2",
        "ATTACH 'x.db'",
        "COPY {table} TO 'x.parquet'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELEC 1",
        "",
    ],
)
def test_sql_that_is_no_query_of_the_snapshot(ground: Ground, sql: str) -> None:
    """A snapshot runs one query over its tables and nothing else; rows and snapshot stay."""
    with ground.db.snapshot() as snap:
        with ground.refuses(BadRequestError):
            snap.sql(sql.format(table=ground.table))
        assert snap.sql(f"SELECT count(*) FROM {ground.table}").column(0).to_pylist() == [ROWS.num_rows]


@pytest.mark.slow
def test_misfits_by_the_command_line(ground: Ground, tmp_path: Path) -> None:
    """The exit code and one line name the misfit; if a command names two tables, neither gets rows."""
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    pq.write_table(ROWS, good)
    pq.write_table(ROWS.drop_columns(["price"]), bad)
    where = ("--data-dir", ground.cluster.folder)
    other = Ground(ground.cluster, ground.db, f"{ground.table}_other")
    for arguments, code, word in (
        (("insert", *where, f"{ground.table}={good}", f"{other.table}={bad}"), Exit.REFUSED, "column price"),
        (("insert", *where, f"{ground.table}={good}", f"nowhere={good}"), Exit.REFUSED, "no table"),
        (("insert", *where, ground.table, tmp_path / "absent.parquet"), Exit.USAGE, "there is no file"),
        (("sql", *where, "SELECT * FROM nowhere"), Exit.REFUSED, "no table"),
        (("sql", *where, "SELEC 1"), Exit.USAGE, "syntax error"),
    ):
        done = command(*arguments)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert word in done.stderr
        assert "Traceback" not in done.stderr
    ground.check_intact()
    other.check_intact()
