"""Columns as data has them: names of any letters and nested types, in every way to write and read a table."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import duckdb
import fsspec  # type: ignore[import-untyped]
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from pyarrow import dataset

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.nested import DEEP, meaning
from tests.support.spark.process import SparkProcess
from tidelock.client import Database
from tidelock.client.values.columns import schema_of
from tidelock.cluster import LocalCluster
from tidelock.errors import BadRequestError, DuplicateKeyError, SchemaMismatchError

pytestmark = pytest.mark.spark

NUMBERS = itertools.count(1)
#: A partition, a key and values, with what SQL, folders, lists and Parquet's paths take for something else.
FOLDER, KEY, DAY, SIZE, DOTTED = "Tag/Monat %=ü.", "Order ID", "Day", "Größe", "a.b"
QUOTED, LISTED, BARE, HASH = 'the "big" `one`', "x, y", "日", "#"
NAMED = (
    f"`{FOLDER}` string, `{KEY}` bigint not null, {DAY} date, {SIZE} double, `{DOTTED}` int, a int, "
    f'"the ""big"" `one`" string, `{LISTED}` string, {BARE} int, `{HASH}` int'
)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Two replicas."""
    return module_cluster(replicas=2, settings=QUICK)


@pytest.fixture
def db(local: LocalCluster) -> Iterator[Database]:
    """A client."""
    with local.connect() as found:
        yield found


@pytest.fixture(scope="module")
def spark(local: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A session whose tasks may write through the data source."""
    with SparkProcess("classic", tmp_path_factory.mktemp("spark"), python_workers=True) as session:
        session.call("join", url=local.url("r1"))
        yield session


def named(*keys: int) -> pa.Table:
    """Rows of a table with the columns `NAMED`."""
    return pa.table(
        {
            FOLDER: [("ä/ö", "50 %")[key % 2] for key in keys],
            KEY: pa.array(keys, pa.int64()),
            DAY: [dt.date(2026, 1, 1) + dt.timedelta(days=key) for key in keys],
            SIZE: [key / 2 for key in keys],
            DOTTED: pa.array([10 * key for key in keys], pa.int32()),
            "a": pa.array([-key for key in keys], pa.int32()),
            QUOTED: [f"q{key}" for key in keys],
            LISTED: [None if key % 3 else "l" for key in keys],
            BARE: pa.array([key + 7 for key in keys], pa.int32()),
            HASH: pa.array([key] * len(keys), pa.int32()) if (key := len(keys)) else pa.array([], pa.int32()),
        }
    )


def in_order(rows: pa.Table, key: str = KEY) -> list[dict[str, Any]]:
    """Return rows as dicts in the order of their key."""
    found: list[dict[str, Any]] = rows.sort_by(key).to_pylist()
    return found


@pytest.mark.slow
def test_names_of_any_letters_are_written_and_read(
    db: Database, local: LocalCluster, spark: SparkProcess
) -> None:
    """Insert, both ways of Spark to write, SQL, scans, the change feed, folders and Spark keep them."""
    table = f"t{next(NUMBERS)}"
    made = db.create_table(table, NAMED, partition_by=[FOLDER], sort_by=[DOTTED])
    assert [column["name"] for column in made["columns"]] == named(1).column_names
    db.insert(table, named(1, 2, 3))
    columns = ", ".join(f"c.`{name.replace('`', '``')}`" for name in named(1).column_names)
    source = ", ".join(
        f"{value} as `{name.replace('`', '``')}`"
        for name, value in zip(
            named(1).column_names,
            ("'ä/ö'", "4L", "date'2026-01-05'", "2.0D", "40", "-4", "'q4'", "string(null)", "11", "3"),
            strict=True,
        )
    )
    spark.call(
        "write", url=local.url("r1"), query=f"select {columns} from (select {source}) c", tables=[table]
    )
    query = f"select {columns} from (select {source}) c"
    spark.call("save", query=query, options={"table": table, "url": local.url("r1")})
    expected = in_order(named(1, 2, 3))
    expected += 2 * [in_order(named(4))[0] | {HASH: 3}]
    assert in_order(db.read(table)) == expected
    assert db.read(table, columns=[DOTTED, "A"], where='"größe" = 1.0 AND "A.B" < 30').to_pylist() == [
        {DOTTED: 20, "a": -2}
    ]
    with db.snapshot() as snap:
        assert snap.sql(f'SELECT day, "{HASH}" FROM {table} WHERE "{KEY}" = 2').num_rows == 1
        assert in_order(snap.scan(table).to_table()) == expected
    changes = db.changes(table, made["csn"]).to_table()
    assert changes.column_names[:-3] == named(1).column_names
    assert changes.num_rows == 5
    spark.call("attach", tables=[table])
    quoted = f'`GRÖßE`, `a.B`, a, `the "big" ``one```, `{BARE}`'
    assert spark.sql(
        f"select {quoted} from {table} where `{KEY}` = 3 and `a.b` > 0 and `{FOLDER}` = '50 %'"
    ) == [[1.5, 30, -3, "q3", 10]]
    assert [name for name, _ in spark.call("schema", table=table)] == named(1).column_names


def test_rows_are_changed_by_names_of_any_letters(db: Database) -> None:
    """Update, delete, merge, upsert, INSERT INTO and compaction; SQL finds a name without regard to case."""
    table = f"t{next(NUMBERS)}"
    db.create_table(table, NAMED, partition_by=[FOLDER])
    db.insert(table, named(1, 2, 3, 4))
    values = {"DAY": "NULL", DOTTED: '"a.b" + a', LISTED: f'"{QUOTED.replace(chr(34), 2 * chr(34))}"'}
    db.update(table, values, where=f'"{KEY.lower()}" <= 2')
    db.delete(table, f'"{BARE}" = 10')
    db.upsert(table, named(4, 5), on=[KEY, LISTED])
    db.merge(
        *(table, named(1).select([KEY, LISTED])),
        on=[KEY],
        when_matched_update={HASH: '"source"."x, y" IS NULL'},
        when_not_matched_insert=None,
    )
    with db.begin() as tx:
        tx.sql(f'INSERT INTO {table.upper()} (A, "{KEY}", "{FOLDER}", größe) SELECT 1, 6, \'x\', 1.5')
    db.optimize(table)
    found = {row[KEY]: row for row in in_order(db.read(table))}
    assert sorted(found) == [1, 2, 4, 5, 6]
    assert found[1] | {"found": 1} == named(1).to_pylist()[0] | {
        DAY: None,
        DOTTED: 9,
        LISTED: "q1",
        HASH: 1,
        "found": 1,
    }
    assert found[6][SIZE] == 1.5
    with pytest.raises(BadRequestError, match=r"names a column of table .* twice"):
        db.update(table, {"day": "NULL", "DAY": "NULL"}, where="true")
    with pytest.raises(SchemaMismatchError, match=r"column Größe \(double\) is missing.*größe is not in"):
        db.insert(table, named(1).rename_columns({SIZE: SIZE.lower()}))


def test_keys_and_lists_of_quoted_names(db: Database) -> None:
    """The property `unique_key` quotes a name with a comma; the message of a duplicate shows the names."""
    table = f"t{next(NUMBERS)}"
    db.create_table(
        *(table, f'"{LISTED}" string not null, `{KEY}` int not null, v int'),
        properties={"unique_key": f'"{LISTED}", {KEY}'},
    )
    rows = pa.table({LISTED: ["a"], KEY: pa.array([1], pa.int32()), "v": pa.array([1], pa.int32())})
    db.insert(table, rows)
    with pytest.raises(DuplicateKeyError, match="x, y=a, Order ID=1"):
        db.insert(table, rows)
    db.upsert(table, rows.set_column(2, "v", pa.array([2], pa.int32())), on=[LISTED, KEY])
    assert db.read(table)["v"].to_pylist() == [2]


def test_files_of_a_snapshot_have_the_names(db: Database) -> None:
    """Pyarrow, pandas and DuckDB read the folder of a snapshot, with the names as they were given."""
    table = f"t{next(NUMBERS)}"
    db.create_table(table, NAMED)
    db.insert(table, named(1, 2))
    with db.snapshot() as snap:
        folder = snap.path(table)
        place = urlsplit(folder)
        files = fsspec.filesystem("webhdfs", host=place.hostname, port=place.port)
        found = dataset.dataset(place.path, filesystem=files).to_table()
        frame = pd.read_parquet(folder)
        with duckdb.connect() as duck:
            duck.register_filesystem(files)
            below = f"webhdfs://{place.path}/**/*.parquet"
            sizes = duck.execute(
                f"""select "{SIZE}", "A.B" from read_parquet('{below}') order by 1"""
            ).fetchall()
    assert in_order(found) == in_order(named(1, 2))
    assert list(frame.columns) == named().column_names
    assert sizes == [(0.5, 10), (1.0, 20)]


NESTED = (
    f"k bigint not null, p string, c {DEEP}, l array<array<int>>, m map<date,struct<x:timestamp,y:binary>>"
)
AT = dt.datetime(2026, 11, 27, 12, 30, 0, 250_000, tzinfo=dt.UTC)


def nested() -> pa.Table:
    """Rows with nulls, NaN, empty lists and empty maps at each depth."""
    nan = math.nan
    structs: list[dict[str, Any] | None] = [
        {
            "a": 1,
            "b c": [{"d": nan, "t": ["x", None]}, None],
            "m": [("k", [nan, None])],
            "e": Decimal("1.50"),
        },
        None,
        {"a": None, "b c": [], "m": [], "e": None},
        {"a": 2, "b c": None, "m": None, "e": None},
        {"a": 3, "b c": [{"d": -0.0, "t": []}], "m": [("", []), ("z", None)], "e": None},
    ]
    day = dt.date(2026, 11, 27)
    return pa.table(
        {
            "k": range(5),
            "p": ["a", "b", "a", "b", "a"],
            "c": structs,
            "l": [[[1, None], [], None], None, [], [None], [[2]]],
            "m": [[(day, {"x": AT, "y": b"\0"})], [], None, [(day, None)], [(day, {"x": None, "y": b""})]],
        },
        schema=schema_of(NESTED),
    )


@pytest.mark.slow
def test_nested_rows_are_the_same_for_every_reader(
    db: Database, local: LocalCluster, spark: SparkProcess
) -> None:
    """Arrow, SQL, both ways of Spark to write, its reader, the change feed and compaction keep all values."""
    first, second, third = (f"n{next(NUMBERS)}" for _ in range(3))
    for table in (first, second, third):
        db.create_table(table, NESTED, partition_by=["p"])
    made = db.insert(first, nested().slice(0, 3))
    db.insert(first, nested().slice(3))
    expected = meaning(nested())
    assert meaning(db.read(first).sort_by("k")) == expected
    spark.call("attach", tables=[first])
    spark.call("write", url=local.url("r1"), query=f"select * from {first}", tables=[second])
    spark.call("save", query=f"select * from {first}", options={"table": third, "url": local.url("r1")})
    for table in (second, third):
        assert meaning(db.read(table).select(nested().column_names).sort_by("k")) == expected
        db.optimize(table)
        assert meaning(db.read(table).sort_by("k")) == expected
        told = db.changes(table, made.csn or 0).to_table().select(nested().column_names).sort_by("k")
        assert meaning(told) == expected
    spark.call("attach", tables=[second, third])
    for table in (second, third):
        assert spark.sql(f"select k from {table} where c.a > 1 and p = 'a' order by k") == [[4]]
        assert spark.sql(f"select k from {table} where isnan(get(c.`b c`, 0).d) or c is null order by k") == [
            [0],
            [1],
        ]
        assert spark.sql(f"select k from {table} where get(c.`b c`, 0).d = 0 order by k") == [[4]]
        assert spark.sql(f"select k, size(l), size(m) from {table} where size(l) = 0 order by k") == [
            [2, 0, None]
        ]
        inner = f"select explode(l) i from {table}"  # flatten would be null where one inside is
        assert spark.sql(f"select sum(e) from (select explode(i) e from ({inner}))") == [[3]]


def test_nested_rows_are_changed(db: Database) -> None:
    """Update, upsert and delete leave what is inside of other rows as it was."""
    table = f"n{next(NUMBERS)}"
    db.create_table(table, NESTED, properties={"unique_key": "k", "on_duplicate": "replace"})
    db.insert(table, nested())
    db.update(table, {"l": "list_append(l, [k::INT])", "p": "'new'"}, where="c.a = 1")
    db.insert(table, nested().slice(4).set_column(0, "k", pa.array([3])))
    db.delete(table, "c IS NULL")
    found = {row["k"]: repr(row) for row in db.read(table).to_pylist()}
    rows = nested().to_pylist()
    assert found == {
        0: repr(rows[0] | {"l": [[1, None], [], None, [0]], "p": "new"}),
        2: repr(rows[2]),
        3: repr(rows[4] | {"k": 3}),
        4: repr(rows[4]),
    }


def test_nested_columns_are_no_keys_and_no_folders(db: Database) -> None:
    """The message says why."""
    for layout, why in (
        ({"partition_by": ["l"]}, "cannot be partitioned by l"),
        ({"sort_by": ["l"]}, "cannot be sorted by l"),
        ({"properties": {"unique_key": "l"}}, "arrays, structs and maps are no keys"),
    ):
        with pytest.raises(BadRequestError, match=why):
            db.create_table("never", "k int, l array<int> not null", **layout)
