"""Rows whose float or double is NaN: found by every condition, in Spark and in DuckDB, however they came in.

Spark and DuckDB take NaN for larger than every other number, and for equal to itself. They skip the row
groups whose range (min, max in the footer) excludes a condition, so the range must not leave a NaN out. Parts
that older writers have made have such ranges, and dictionaries with zeros: readers are not shown these.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import urllib3

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.refusals import Addresses
from tests.support.spark.hdfs_client import Folder
from tests.support.spark.process import SparkProcess
from tidelock.client import connect
from tidelock.cluster import LocalCluster

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.int64()), ("f", pa.float32()), ("d", pa.float64())])
#: Values of both columns; None is a null. Each list is one insert, so it becomes a part with its own range.
INSERTS: list[list[float | None]] = [
    [0.5, math.nan, -1.0],
    [math.nan, None],
    [0.0, -0.0, 1.0],
    [math.inf, -math.inf, 1.0, None],
    [-0.0],
    [0.0],
]
CONSTANTS = ("1", "0", "-0.0D", "double('nan')", "double('inf')", "double('-inf')", "0.5D")
#: Conditions by kind; each is asked of both columns of all tables in one query.
CONDITIONS = {
    operator: [f"{{c}} {operator} {constant}" for constant in CONSTANTS]
    for operator in ("=", "<>", "<", "<=", ">", ">=", "<=>")
} | {
    "others": [
        "{c} IN (double('nan'), 7)",
        "{c} IN (0, 0.5)",
        "{c} NOT IN (1, 0.5)",
        "NOT ({c} < 1)",
        "{c} BETWEEN 0 AND double('nan')",
        "isnan({c})",
        "{c} IS NULL",
    ]
}
#: The parts of older writers: as agents wrote them, and what pyarrow writes by itself, with a page index.
OLDER: dict[str, dict[str, object]] = {
    "older": {"store_schema": False, "write_page_checksum": True, "compression": "snappy"},
    "older_indexed": {"write_page_index": True, "version": "1.0"},
}
TABLES = ("inserted", "merged", "saved", *OLDER, "older_merged")


def rows() -> list[tuple[int, float | None]]:
    """All rows: their key, and the value of both columns."""
    return list(enumerate(value for values in INSERTS for value in values))


def table_of(values: list[tuple[int, float | None]]) -> pa.Table:
    """These rows as Arrow."""
    keys, numbers = [key for key, _ in values], [number for _, number in values]
    return pa.table({"k": keys, "f": numbers, "d": numbers}, schema=SCHEMA)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One replica."""
    return module_cluster(replicas=1, settings=QUICK)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A session whose tasks may write through the data source."""
    with SparkProcess("classic", tmp_path_factory.mktemp("spark"), python_workers=True) as session:
        yield session


@pytest.fixture(scope="module")
def filled(local: LocalCluster, spark: SparkProcess) -> str:
    """Tables with the same rows: as inserted, merged, saved by Spark's data source, and of older writers."""
    with connect(local.url("r1")) as db:
        for name in TABLES:
            db.create_table(name, SCHEMA, properties={"compaction": "off"})
        left = rows()
        for values in INSERTS:
            for name in ("inserted", "merged"):
                db.insert(name, table_of(left[: len(values)]))
            left = left[len(values) :]
        db.optimize("merged")
        for name in (*OLDER, "older_merged"):
            left = rows()
            for values in INSERTS:
                with db.begin() as tx:
                    data = older_part(left[: len(values)], OLDER.get(name, {}))
                    assert Folder(tx.path(name)).write({"": data}).status == 201
                left = left[len(values) :]
        db.optimize("older_merged")
        query = "SELECT CAST(k AS bigint) k, CAST(v AS float) f, v d FROM " + literal()
        spark.call("save", query=query, options={"table": "saved", "url": local.url("r1")})
    spark.call("join", url=local.url("r1"))
    spark.call("attach", tables=list(TABLES))
    return local.url("r1")


def older_part(values: list[tuple[int, float | None]], layout: dict[str, object]) -> bytes:
    """Return a file of these rows as writers made it before they knew of NaN: with all that misleads."""
    sink = io.BytesIO()
    pq.write_table(table_of(values), sink, **layout)
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    chunk = metadata.row_group(0).column(SCHEMA.get_field_index("d"))
    numbers = [number for _, number in values if number is not None and not math.isnan(number)]
    assert chunk.has_dictionary_page
    assert not numbers or chunk.statistics.max == max(numbers)
    return sink.getvalue()


def literal() -> str:
    """The rows as a relation of Spark's SQL, which no file holds."""
    texts = [f"({key}, double({'NULL' if value is None else repr(str(value))}))" for key, value in rows()]
    return f"VALUES {', '.join(texts)} AS literal(k, v)"


def asked(conditions: list[str], relations: dict[str, str]) -> str:
    """Return one query: table, condition, column and key of all rows that the conditions find."""
    return " UNION ALL ".join(
        f"SELECT '{name}' t, {number} n, '{column}' c, k FROM {relation} WHERE {condition.format(c=column)}"
        for name, relation in relations.items()
        for number, condition in enumerate(conditions)
        for column in ("f", "d")
    )


def difference(found: Iterable[Iterable[object]], expected: Iterable[Iterable[object]]) -> list[object]:
    """Return what is in one of them only: condition, column, key."""
    return sorted({tuple(row) for row in found} ^ {tuple(row) for row in expected}, key=repr)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pushed",
    [
        pytest.param(True, id="pushed down"),
        pytest.param(False, id="not pushed down", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "conditions",
    [pytest.param(conditions, id=kind) for kind, conditions in CONDITIONS.items()],
)
def test_spark_finds_every_row(
    spark: SparkProcess, filled: str, conditions: list[str], *, pushed: bool
) -> None:
    """A condition finds the rows of a table that it finds in the same rows without files."""
    assert filled
    spark.sql(f"SET spark.sql.parquet.filterPushdown={str(pushed).lower()}")
    values = f"(SELECT CAST(k AS bigint) k, CAST(v AS float) f, v d FROM {literal()})"
    expected = sorted(row[1:] for row in spark.sql(asked(conditions, {"values": values})))
    assert expected
    found = spark.sql(asked(conditions, {name: name for name in TABLES}))
    for name in TABLES:
        assert difference((row[1:] for row in found if row[0] == name), expected) == [], name


@pytest.mark.parametrize("conditions", CONDITIONS.values(), ids=CONDITIONS)
@pytest.mark.slow
def test_duckdb_finds_every_row(
    local: LocalCluster, filled: str, tmp_path: Path, conditions: list[str]
) -> None:
    """So do SQL beside the agent, and DuckDB's own reader of the files."""
    data = Addresses.of(local, "r1").data
    spoken = [
        re.sub(r"double\(('[^']*')\)|(\d\.\d)D", r"CAST(\1\2 AS double)", condition).replace(
            "<=>", "IS NOT DISTINCT FROM"
        )
        for condition in conditions
    ]
    memory = duckdb.connect()
    memory.register("literal", table_of(rows()))
    expected = sorted(row[1:] for row in memory.sql(asked(spoken, {"values": "literal"})).fetchall())
    with connect(filled) as db, db.snapshot() as snap:
        for name in TABLES:
            beside = snap.sql(asked(spoken, {name: name})).select(["n", "c", "k"]).to_pylist()
            assert difference((row.values() for row in beside), expected) == [], name
            folder = tmp_path / name
            folder.mkdir()
            for number, part in enumerate(snap.parts(name)):
                url = f"{data}/snapshots/{snap.csn}/{part['file']}"
                (folder / f"{number}.parquet").write_bytes(urllib3.request("GET", url).data)
            files = f"read_parquet('{folder}/*.parquet')"
            found = memory.sql(asked(spoken, {name: files})).fetchall()
            assert difference((row[1:] for row in found), expected) == [], name
