"""Types that other programs have and tables do not: the values are equal, by each way in and reader."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import two_level_lists
from tests.support.clusters.agreeing import agreeing, all_follow
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.spark.process import SparkProcess
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import SchemaMismatchError

NUMBERS: Final = itertools.count(1)
AT: Final = dt.datetime(2026, 11, 29, 10, 30, 7)  # noqa: DTZ001 - a timestamp without a zone
SCHEMA: Final = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        ("bytes", pa.large_binary()),
        ("text", pa.large_string()),
        ("many", pa.large_list(pa.large_string())),
        ("naive", pa.timestamp("s")),
        ("moment", pa.timestamp("s", "UTC")),
        ("deep", pa.struct([("at", pa.large_list(pa.timestamp("s"))), ("raw", pa.large_binary())])),
        ("pairs", pa.map_(pa.large_string(), pa.large_list(pa.int64()))),
    ]
)
ROWS: Final[list[dict[str, Any]]] = [
    {
        "n": 1,
        "bytes": b"\x00\xff",
        "text": "é",
        "many": ["a", None, ""],
        "naive": AT,
        "moment": AT.replace(tzinfo=dt.UTC),
        "deep": {"at": [AT, None], "raw": b"x"},
        "pairs": [("k", [1, None])],
    },
    {"n": 2, **dict.fromkeys(SCHEMA.names[1:])},
    {
        "n": 3,
        "bytes": b"",
        "text": "",
        "many": [],
        "naive": dt.datetime(1, 1, 1),  # noqa: DTZ001
        "moment": dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC),
        "deep": {"at": [], "raw": None},
        "pairs": [],
    },
]
LISTS: Final[list[list[int] | None]] = [[1, 2], [], None, [3], [4, 5, 6], [7] * 2000]


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas, which cut nearly every part, and agree at the end, with nothing left over."""
    settings = QUICK | {"cut_part_bytes_min": 1, "row_group_rows": 4}
    yield from agreeing(module_cluster(replicas=3, settings=settings))


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in the order of their numbers, with maps as lists of pairs."""
    found = [dict(row) for row in sorted(rows, key=lambda row: row["n"])]
    for row in found:
        if isinstance(row.get("pairs"), dict):
            row["pairs"] = list(row["pairs"].items())
    return found


def by_import(db: Database, table: str, given: pa.Table, folder: Path) -> None:
    """Import a file that notes the types in memory; it stores microseconds, as tables do."""
    pq.write_table(given, folder / "given.parquet", coerce_timestamps="us")
    db.import_files(table, folder / "given.parquet")


WAYS: Final[dict[str, Callable[[Database, str, pa.Table, Path], object]]] = {
    "insert": lambda db, table, given, _: db.insert(table, given),
    "upsert": lambda db, table, given, _: db.upsert(table, given, on=["n"]),
    "merge": lambda db, table, given, _: db.merge(table, given, on=["n"], when_not_matched_insert=True),
    "import": by_import,
}


def by_duckdb(db: Database, table: str, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the files of a table as DuckDB reads them, by itself."""
    db.export(table, folder)
    with duckdb.connect() as duck:
        found: pa.Table = duck.sql(f"select * from read_parquet('{folder}/**/*.parquet')").to_arrow_table()
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.few(2)
def test_large_types_and_seconds_keep_their_values(
    dbs: list[Database], db: Database, tmp_path: Path, way: str
) -> None:
    """By Arrow, SQL and the files themselves, before and after the parts are merged, at each replica."""
    table = f"t{next(NUMBERS)}"
    made = db.create_table(table, SCHEMA)
    assert {column.name: column.type for column in made.columns} == {
        "n": "bigint",
        "bytes": "binary",
        "text": "string",
        "many": "array<string>",
        "naive": "timestamp_ntz",
        "moment": "timestamp",
        "deep": "struct<at:array<timestamp_ntz>,raw:binary>",
        "pairs": "map<string,array<bigint>>",
    }
    given = pa.Table.from_pylist(ROWS, SCHEMA)
    WAYS[way](db, table, given.slice(0, 2), tmp_path)
    WAYS[way](db, table, given.slice(2), tmp_path)
    for number in range(2):
        with db.begin(fresh=True) as tx:
            csn = tx.snapshot_csn
        for one in dbs:
            with one.snapshot(min_csn=csn) as snapshot:
                assert plain(snapshot.read(table).to_pylist()) == ROWS
                assert plain(snapshot.sql(f"select * from {table}").to_pylist()) == ROWS
        assert plain(by_duckdb(db, table, tmp_path / f"out{number}")) == ROWS
        db.optimize(table)
    db.update(table, {"text": "text || '!'", "naive": "naive + interval 1 second"}, where="n = 1")
    found = plain(db.read(table).to_pylist())
    changed = {**ROWS[0], "text": "é!", "naive": AT + dt.timedelta(seconds=1)}
    assert found == [changed, *ROWS[1:]]


def lists(found: pa.Table) -> list[dict[str, Any]]:
    """Return rows of the table with lists, in their order."""
    return sorted(found.select(["n", "l"]).to_pylist(), key=lambda row: row["n"])


def with_lists(db: Database, name: str, folder: Path) -> str:
    """Return a table with the rows of a file that has lists of two levels."""
    table = f"t{next(NUMBERS)}"
    db.create_table(table, "n bigint, l array<bigint>")
    path = folder / f"{name}.parquet"
    path.write_bytes(two_level_lists.file_of(LISTS, name))
    db.insert(table, path, wait="all")
    return table


@pytest.mark.parametrize("name", two_level_lists.NAMES)
def test_a_file_with_lists_of_two_levels_is_no_part(db: Database, tmp_path: Path, name: str) -> None:
    """Some readers know the layout of today alone; the refusal says that an insert takes the rows."""
    table = f"t{next(NUMBERS)}"
    db.create_table(table, "n bigint, l array<bigint>")
    path = tmp_path / "old.parquet"
    path.write_bytes(two_level_lists.file_of(LISTS, name))
    with pytest.raises(
        SchemaMismatchError, match=rf"column l for table default\.{table} .* two levels: insert"
    ):
        db.import_files(table, path)
    assert db.read(table).num_rows == 0
    seconds = tmp_path / "seconds.parquet"
    pq.write_table(pa.table({"n": [1], "at": pa.array([AT], pa.timestamp("s"))}), seconds)
    db.create_table(f"{table}_at", "n bigint, at timestamp_ntz")
    with pytest.raises(SchemaMismatchError, match=r"column at .* is timestamp\[ms\], expected timestamp_ntz"):
        db.import_files(f"{table}_at", seconds)
    db.insert(f"{table}_at", seconds)
    assert db.read(f"{table}_at").to_pylist() == [{"n": 1, "at": AT}]


@pytest.mark.parametrize("name", two_level_lists.NAMES)
def test_lists_of_two_levels_are_inserted_with_their_values(
    dbs: list[Database], db: Database, tmp_path: Path, name: str
) -> None:
    """Files of old writers: each reader has the lists, also after changes, merges and new columns."""
    table = with_lists(db, name, tmp_path)
    expected: list[dict[str, Any]] = [{"n": number, "l": found} for number, found in enumerate(LISTS)]
    with db.begin(fresh=True) as tx:
        csn = tx.snapshot_csn
    for one in dbs:
        with one.snapshot(min_csn=csn) as snapshot:
            assert lists(snapshot.read(table)) == expected
            assert lists(snapshot.sql(f"select * from {table}")) == expected
            assert lists(snapshot.sql(f"select * from {table} where n >= 4")) == expected[4:]
            assert snapshot.sql(f"select sum(len(l)) as s from {table}").to_pylist() == [{"s": 2006}]
    assert sorted(by_duckdb(db, table, tmp_path / "out"), key=lambda row: row["n"]) == expected
    db.delete(table, "n = 1")
    db.update(table, {"l": "list_append(l, 9)"}, where="n = 3")
    changed: list[dict[str, Any]] = [row for row in expected if row["n"] != 1]
    changed[2] = {"n": 3, "l": [3, 9]}
    assert lists(db.read(table)) == changed
    db.insert(table, pa.table({"n": [10], "l": [[None, 1]]}))
    db.optimize(table)
    changed.append({"n": 10, "l": [None, 1]})
    assert lists(db.read(table)) == changed
    db.alter_table(table, rename={"l": "m"}, add="x int default 1")
    found = db.sql(f"select n, m as l from {table}")
    assert lists(found) == changed
    db.clone_table(table, f"{table}_copy")
    assert lists(db.sql(f"select n, m as l from {table}_copy")) == changed


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_the_types_of_other_writers(local: LocalCluster, db: Database, tmp_path: Path) -> None:
    """By its own Parquet reader and by the data source: of an imported file, and of inserts."""
    types, old = f"t{next(NUMBERS)}", [with_lists(db, name, tmp_path) for name in two_level_lists.NAMES]
    given = pa.Table.from_pylist(ROWS, SCHEMA)
    db.create_table(types, SCHEMA)
    by_import(db, types, given.slice(0, 1), tmp_path)
    db.insert(types, given.slice(1), wait="all")
    all_follow(local)
    with SparkProcess("classic", tmp_path, python_workers=True) as spark:
        spark.call("join", url=local.url("r2"))
        spark.call("attach", tables=[types, *old])
        for table in (types, *old):
            spark.call("load", view=f"{table}_source", options={"table": table, "url": local.url("r3")})
        for view in (types, f"{types}_source"):
            assert spark.sql(
                f"select n, hex(bytes), text, many, cast(naive as string), unix_seconds(moment), "
                f"cast(get(deep.at, 0) as string), get(pairs['k'], 0) from {view} order by n"
            ) == [
                [
                    1,
                    "00FF",
                    "é",
                    ["a", None, ""],
                    "2026-11-29 10:30:07",
                    1795948207,
                    "2026-11-29 10:30:07",
                    1,
                ],
                [2, None, None, None, None, None, None, None],
                [3, "", "", [], "0001-01-01 00:00:00", 253402300799, None, None],
            ]
        for table in old:
            for view in (table, f"{table}_source"):
                assert spark.sql(f"select n, l from {view} order by n") == [
                    [number, found] for number, found in enumerate(LISTS)
                ]
