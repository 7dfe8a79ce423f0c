"""Rows as programs have them go into tables as they are: narrower and unsigned integers, categories, times.

A table is made of the rows themselves, or of the types that a user would write. By each way of writing, what
is read back has equal values, and a value without an equal refuses the statement.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import BadRequestError, SchemaMismatchError, TableExistsError

pd = pytest.importorskip("pandas", reason="pandas comes with the extra `spark`")
NUMBERS = itertools.count(1)
AT = dt.datetime(2026, 11, 27, 12, 30, 0, 250_000, tzinfo=dt.UTC)
#: Enough rows for the path of large inserts.
MANY = 100_000
#: The columns that somebody writes down for the rows of `rows()`.
WRITTEN = (
    "id bigint not null, port int, big decimal(20,0), kind string, ratio double, price decimal(9,2), "
    "day date, seen timestamp, heard timestamp_ntz, gap bigint"
)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Two replicas; nothing is left over at the end."""
    made = module_cluster(replicas=2, settings=QUICK)
    yield made
    for replica in made.replicas:
        nothing_left(made.data_dir(replica))


@pytest.fixture
def db(local: LocalCluster) -> Iterator[Database]:
    """A client."""
    with local.connect() as found:
        yield found


def rows(count: int = 3) -> pa.Table:
    """Rows whose types are those of no column, or of another one than `WRITTEN` has."""
    times = [AT + dt.timedelta(seconds=n) for n in range(count)]
    naive = [at.replace(tzinfo=None) for at in times]
    return pa.table(
        {
            "id": pa.array(range(count), pa.int32()),
            "port": pa.array([n % 65_536 for n in range(count)], pa.uint16()),
            "big": pa.array([(1 << 64) - 1 - n for n in range(count)], pa.uint64()),
            "kind": pa.array([("a", "b")[n % 2] for n in range(count)]).dictionary_encode(),
            "ratio": pa.array([0.5] * count, pa.float32()),
            "price": pa.array([Decimal(n % 1000) for n in range(count)], pa.decimal128(5, 0)),
            "day": pa.array(naive, pa.timestamp("us")).cast(pa.timestamp("s"), safe=False).cast(pa.date64()),
            "seen": pa.array(times, pa.timestamp("ns", "Asia/Tokyo")),
            "heard": pa.array(naive, pa.timestamp("ms")),
            "gap": pa.array([None if n % 2 else float(n) for n in range(count)]),
        }
    )


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows in the order of their ids, in Python's types, times in UTC."""
    found = table.sort_by("id").to_pylist()
    return [
        {name: at.astimezone(dt.UTC) if name == "seen" else at for name, at in row.items()} for row in found
    ]


def expected(given: pa.Table) -> list[dict[str, Any]]:
    """Return the same rows in the types of the columns, converted by Python."""
    whole = {"gap": lambda one: None if one is None else int(one), "big": Decimal, "seen": _moment}
    columns = [
        [whole.get(name, lambda one: one)(one) for one in given[name].to_pylist()]  # type: ignore[operator]
        for name in given.column_names
    ]
    return [dict(zip(given.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _moment(at: Any) -> dt.datetime:
    found: dt.datetime = at.to_pydatetime() if hasattr(at, "to_pydatetime") else at
    return found.astimezone(dt.UTC)


def steps(db: Database, table: str, given: pa.Table) -> None:
    """Insert in a transaction that has begun."""
    with db.begin() as tx:
        tx.read(table)
        tx.insert(table, given)


WAYS: dict[str, tuple[int, Callable[[Database, str, pa.Table], Any]]] = {
    "one request": (3, lambda db, table, given: db.insert(table, given)),
    "step by step": (3, steps),
    "many rows": (MANY, lambda db, table, given: db.insert(table, given)),
    "upsert": (3, lambda db, table, given: db.upsert(table, given, on=["id"])),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.few(2)
def test_rows_of_other_types_are_equal_when_they_are_read(db: Database, way: str) -> None:
    """They need no cast."""
    table, (count, write) = f"t{next(NUMBERS)}", WAYS[way]
    db.create_table(table, WRITTEN)
    given = rows(count)
    write(db, table, given)
    found = db.read(table)
    assert found.schema.field("port").type == pa.int32()
    assert plain(found) == expected(given)


def test_rows_of_other_types_land(db: Database) -> None:
    """As those that come in a transaction."""
    table = f"t{next(NUMBERS)}"
    db.create_table(table, WRITTEN, properties={"landing": "on"})
    db.land(table, rows())
    eventually(lambda: db.read(table).num_rows == 3, what="the rows that have landed")
    assert plain(db.read(table)) == expected(rows())


def test_a_table_made_of_a_dataframe_takes_it(db: Database) -> None:
    """No type is written by hand: categories, ns times and unsigned integers of pandas are stored."""
    table = f"t{next(NUMBERS)}"
    frame = rows().drop_columns(["price", "day"]).to_pandas()  # pandas has neither
    made = db.create_table(table, frame)
    assert {column["name"]: column["type"] for column in made["columns"]} == {
        "id": "int",
        "port": "int",
        "big": "decimal(20,0)",
        "kind": "string",
        "ratio": "float",
        "seen": "timestamp",
        "heard": "timestamp_ntz",
        "gap": "double",
    }
    db.insert(table, frame)
    found = db.read(table)
    assert found["kind"].to_pylist() == ["a", "b", "a"]
    assert found["big"].to_pylist() == [(1 << 64) - 1 - n for n in range(3)]
    assert found["gap"].to_pylist() == [0.0, None, 2.0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("column", "last", "text"),
    [
        ("id", pa.scalar(1 << 31, pa.int64()), None),
        ("port", pa.scalar(1 << 31, pa.int64()), "no value equal to 2147483648"),
        ("price", pa.scalar(Decimal("1.125")), "no value equal to 1.125"),
        ("heard", pa.scalar(1, pa.timestamp("ns")), "no value equal to 1970-01-01 00:00:00.000000001"),
        ("gap", pa.scalar(0.5), "no value equal to 0.5"),
        ("gap", pa.scalar(float("nan")), "no value equal to nan"),
    ],
    ids=str,
)
def test_a_value_without_an_equal_is_refused_with_its_row(
    db: Database, way: str, column: str, last: pa.Scalar, text: str | None
) -> None:
    """The last row decides; nothing of the statement is kept."""
    table, (count, write) = f"t{next(NUMBERS)}", WAYS[way]
    db.create_table(table, WRITTEN)
    given = rows(count)
    values = pa.concat_arrays([pa.nulls(count - 1, last.type), pa.array([last.as_py()], last.type)])
    if column == "id":
        values = pa.concat_arrays([pa.array(range(count - 1), last.type), values[-1:]])
    changed = given.set_column(given.column_names.index(column), column, values)
    if text is None:
        write(db, table, changed)
        assert db.read(table).num_rows == count
        return
    with pytest.raises(SchemaMismatchError, match=text) as caught:
        write(db, table, changed)
    assert (caught.value.details["column"], caught.value.details["row"]) == (column, count - 1)
    assert db.read(table).num_rows == 0


def test_a_table_is_made_only_once(db: Database, local: LocalCluster) -> None:
    """`if_not_exists` returns the table that is there, also to a client of a replica that is behind."""
    table = f"t{next(NUMBERS)}"
    made = db.create_table(table, {"id": "bigint"}, if_not_exists=True)
    for replica in local.replicas:
        with local.connect(replica) as other:
            found = other.create_table(table, "id int, other string", if_not_exists=True)
            assert "csn" not in found
            assert found["columns"] == made["columns"]
            with pytest.raises(TableExistsError):
                other.create_table(table, {"id": "bigint"})


def test_rows_of_other_types_are_refused_where_that_is_asked_for(db: Database) -> None:
    """`cast="exact"` takes the types of the table alone, in a transaction and as a statement of its own."""
    table = f"t{next(NUMBERS)}"
    db.create_table(table, {"k": "bigint", "v": "double"})
    narrow = pa.table({"k": pa.array([1], pa.int32()), "v": [1.0]})
    with pytest.raises(SchemaMismatchError, match="k is int32, expected int64"):
        db.insert(table, narrow, cast="exact")
    with db.begin() as tx, pytest.raises(SchemaMismatchError, match="k is int32, expected int64"):
        tx.insert(table, narrow, cast="exact")
    assert db.read(table).num_rows == 0
    db.insert(table, pa.table({"k": [1], "v": [1.0]}), cast="exact")
    db.insert(table, narrow, cast="safe")
    db.insert(table, [{"k": 2, "v": 0.5, "new": "a"}], cast="exact", merge_schema=True)
    assert sorted(db.read(table)["k"].to_pylist()) == [1, 1, 2]
    with pytest.raises(BadRequestError, match='expected cast="safe" or "exact"'):
        db.insert(table, narrow, cast="loose")  # type: ignore[arg-type]
