"""Columns that are added, dropped, renamed and ordered: each reader sees those of its CSN, in all rows.

A model keeps the columns and the rows of a table at each CSN. What clients, SQL, and plain readers of the
files of snapshots show at past CSNs, on every replica, is compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.agreeing import agreeing
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.shown_tables import Model, of_files, require_shown
from tests.support.faults.refusals import http
from tests.support.histories.evidence import data_address
from tests.support.spark.process import SparkProcess
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.column_types import to_arrow
from tidelock.errors import (
    BadRequestError,
    DuplicateKeyError,
    RefusedError,
    SchemaMismatchError,
    SerializationConflictError,
    TableChangedError,
)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas, which cut nearly every part, and agree at the end, with nothing left over."""
    yield from agreeing(
        module_cluster(replicas=3, settings=QUICK | {"cut_part_bytes_min": 1, "row_group_rows": 4})
    )


# -- what a change does to others ----------------------------------------------------------------------------


def test_a_column_that_comes_again_is_another_one(local: LocalCluster, dbs: list[Database]) -> None:
    """The values of the dropped column do not come back, by no way of reading, nor by its statistics."""
    db = dbs[0]
    db.create_table("t", {"k": "bigint not null", "a": "bigint", "b": "string"})
    old = db.insert("t", pa.table({"k": [1, 2], "a": [10, 20], "b": ["x", "y"]})).csn or 0
    dropped = db.alter_table("t", drop=["a"])["csn"]
    again = db.alter_table("t", add={"a": "bigint"}, rename={"b": "c"})["csn"]
    new = db.insert("t", pa.table({"k": [3], "c": ["z"], "a": [20]}), wait="all").csn or 0
    for other in dbs:
        assert other.read("t", csn=old).to_pydict() == {"k": [1, 2], "a": [10, 20], "b": ["x", "y"]}
        assert other.read("t", csn=dropped).to_pydict() == {"k": [1, 2], "b": ["x", "y"]}
        assert other.read("t", csn=again).to_pydict() == {"k": [1, 2], "c": ["x", "y"], "a": [None, None]}
        with other.snapshot(csn=new) as snap:
            assert snap.sql("select k from t where a = 20").to_pydict() == {"k": [3]}
            assert snap.sql("select k from t where a is null order by k").to_pydict() == {"k": [1, 2]}
            assert snap.sql("select k from t where c = 'y'").to_pydict() == {"k": [2]}
            with pytest.raises(BadRequestError, match="b"):
                snap.sql("select b from t")
        ids = [column["id"] for column in other.table("t", csn=new)["columns"]]
        assert ids == [1, 3, 4]
    rows = ({1: 1, 3: "x"}, {1: 2, 3: "y"}, {1: 3, 3: "z", 4: 20})
    model = Model(((1, "k", "bigint"), (3, "c", "string"), (4, "a", "bigint")), rows)
    require_shown(local, "r2", new, "t", model)
    db.optimize("t")
    with dbs[0].snapshot() as snap:
        assert len(snap.parts("t")) == 1
    require_shown(local, "r1", dbs[0].seen_csn or 0, "t", model)


def test_a_required_column_may_be_null_from_then_on(local: LocalCluster, dbs: list[Database]) -> None:
    """Rows of before and of after are in one part after changes of rows, and all readers see them."""
    db = dbs[0]
    db.create_table("t", "k bigint not null, s string not null, v bigint", properties={"compaction": "off"})
    old = 0
    for begin in (0, 10):
        few = pa.table({"k": range(begin, begin + 10), "s": ["a"] * 10, "v": [1] * 10})
        old = db.insert("t", few).csn or 0
    with pytest.raises(SchemaMismatchError, match=r"column s .* is required"):
        db.insert("t", pa.table({"k": [20], "s": pa.array([None], pa.string()), "v": [1]}))
    for wrong in (["v"], ["x"], ["s", "s"]):
        with pytest.raises(BadRequestError, match="is no required column"):
            db.alter_table("t", nullable=wrong)
    changed = db.alter_table("t", nullable=["s"], rename={"k": "key"})
    assert [one.nullable for one in changed.columns] == [False, True, True]
    db.insert("t", pa.table({"key": [20, 21], "s": [None, "b"], "v": [1, None]}))
    db.update("t", {"s": None, "v": 2}, "key in (3, 13)")
    db.delete("t", "key = 4")
    rows = [{1: k, 2: "a", 3: 1} for k in range(20) if k not in {3, 4, 13}]
    rows += [{1: 3, 2: None, 3: 2}, {1: 13, 2: None, 3: 2}, {1: 20, 2: None, 3: 1}, {1: 21, 2: "b", 3: None}]
    model = Model(((1, "key", "bigint"), (2, "s", "string"), (3, "v", "bigint")), tuple(rows))
    for step in (lambda: None, lambda: db.optimize("t")):
        step()
        with dbs[1].snapshot(min_csn=db.seen_csn) as newest:
            require_shown(local, "r2", newest.csn, "t", model)
    assert db.read("t", csn=old).schema.names == ["k", "s", "v"]
    db.create_table("keyed", {"k": "bigint not null"}, properties={"unique_key": "k"})
    with pytest.raises(BadRequestError, match="cannot have this unique key"):
        db.alter_table("keyed", nullable=["k"])


def test_wider_types_hold_for_all_rows(local: LocalCluster, dbs: list[Database]) -> None:
    """In files of before too, for every reader; earlier CSNs keep theirs, and the feed tells nothing."""
    db = dbs[0]
    columns = "k int not null, p smallint not null, a tinyint, f float, m decimal(9,2), b bigint, n string"
    db.create_table("t", columns, partition_by=["p"], sort_by=["a"], properties={"unique_key": "k, p"})
    db.alter_table("t", add="i int not null default -7, d decimal(4,2) default -1.5, g float default 0.1")
    old = 0
    for p in (1, 2):
        rows: dict[str, list[Any]] = {
            "k": [1, 2, 3],
            "p": [p] * 3,
            "a": [-128, None, 127],
            "f": [0.1, None, float("inf")],
        }
        rows |= {"m": [Decimal("-9999999.99"), None, Decimal("0.01")], "b": [1, 2, 3], "n": ["x", None, "y"]}
        old = db.insert("t", rows_of(rows)).csn or 0
    narrow = db.read("t", csn=old)
    small = db.alter_table("t", types={"a": "int", "p": "int"})["csn"]
    parts = {part.part for part in db.parts("t", csn=old)}
    # Integers of 32 bits need no other pages.
    assert {part.part for part in db.parts("t", csn=small)} == parts
    wide = {"k": pa.int64(), "p": "bigint", "a": "bigint", "f": "double", "m": "decimal(38,4)"}
    wide |= {"i": "bigint", "d": "decimal(20,3)", "g": "double"}
    changed = db.alter_table("t", types=wide, rename={"n": "text"}, default={"m": "1.25"})
    assert {part.part for part in db.parts("t", csn=changed["csn"])}.isdisjoint(parts)
    types = {"k": "bigint", "p": "bigint", "a": "bigint", "f": "double", "m": "decimal(38,4)", "b": "bigint"}
    types |= {"text": "string", "i": "bigint", "d": "decimal(20,3)", "g": "double"}
    assert {one.name: one.type for one in changed.columns} == types
    expected = narrow.rename_columns(["text" if name == "n" else name for name in narrow.column_names])
    schema = pa.schema([pa.field(name, to_arrow(kind)) for name, kind in types.items()])
    expected = expected.cast(schema).sort_by([("p", "ascending"), ("k", "ascending")])
    for other in dbs:
        found = other.read("t", csn=changed["csn"]).sort_by([("p", "ascending"), ("k", "ascending")])
        assert found.cast(schema).equals(expected)
        assert other.read("t", csn=old).sort_by("k").equals(narrow.sort_by("k"))
        counts = {"a < -127": 2, "m = -9999999.99": 2, "d = -1.5 and i = -7": 6, "g < 1": 6}
        for where, count in counts.items():
            assert other.read("t", where=where, csn=changed["csn"]).num_rows == count, where
    for folder, file in of_files(data_address(local, "r3"), changed["csn"], "t"):
        assert {name: str(file.schema.field(name).type) for name in file.column_names} == {
            name: str(to_arrow(kind)) for name, kind in types.items() if name != "p"
        }, folder
    assert db.diff("t", small, changed["csn"]).to_table().num_rows == 0
    large = {"k": [1 << 40], "p": [1 << 40], "a": [1 << 40], "f": [1e300], "b": [0], "text": ["z"]}
    db.insert("t", pa.table(large))
    found = db.read("t", ["m", "i", "d"], where="k > 100").to_pylist()
    assert found == [{"m": Decimal("1.2500"), "i": -7, "d": Decimal("-1.500")}]
    with pytest.raises(DuplicateKeyError):
        db.insert("t", pa.table({**large, "k": [2], "p": [2]}))


def rows_of(columns: dict[str, list[Any]]) -> pa.Table:
    """Return rows in the narrow types of the test above."""
    types = {"k": pa.int32(), "p": pa.int16(), "a": pa.int8(), "f": pa.float32(), "m": pa.decimal128(9, 2)}
    return pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})


def test_a_wider_type_that_does_not_fit_is_refused(local: LocalCluster, dbs: list[Database]) -> None:
    """With the reason, and nothing changes; a derived table refuses the values that it cannot have."""
    db = dbs[0]
    db.create_table("t", "k bigint not null, i int, f float, m decimal(9,2), l array<int>, s string")
    for types, words in (
        ({"k": "int"}, "k .* is bigint, which cannot become int"),
        ({"i": "double"}, "cannot become double"),
        ({"i": "int"}, "cannot become int"),
        ({"f": "decimal(38,10)"}, "cannot become"),
        ({"m": "decimal(10,4)"}, "cannot become"),
        ({"l": "array<bigint>"}, "cannot become"),
        ({"s": "binary"}, "cannot become"),
        ({"x": "bigint"}, "has no column x"),
        ({"i": "bigint not null"}, "expected a type alone for column i"),
        ({"i": "nonsense"}, "is not a column type"),
    ):
        with pytest.raises(BadRequestError, match=words):
            db.alter_table("t", types=types)
    with pytest.raises(BadRequestError, match="named twice by the change"):
        db.alter_table("t", types={"i": "bigint"}, drop=["i"])
    alone = http("PATCH", f"{local.url('r1')}/api/v1/tables/t", {"types": {"i": "bigint"}})
    assert (alone.status, alone.json["error"]) == (400, "BadRequestError")
    assert "inside a transaction" in alone.json["message"]
    assert db.table("t")["version"] == 0
    db.create_table("d", {"i": "int"}, derived_from="t", derived_sql="select i from inserted")
    db.alter_table("t", types={"i": "bigint"})
    db.insert("t", pa.table({"k": [1], "i": [2]}), merge_schema=True)
    with pytest.raises(
        RefusedError, match=r"table default\.d, derived from default\.t, cannot follow the insert"
    ):
        db.insert("t", pa.table({"k": [1], "i": [1 << 40]}), merge_schema=True)


def test_rows_that_change_while_a_type_is_widened(dbs: list[Database]) -> None:
    """One of the two wins, the other is told: no row stays in the type of before."""
    db, other = dbs[0], dbs[1]
    db.create_table("t", "k int, v int")
    rows = pa.table({"k": pa.array(range(100), pa.int32()), "v": pa.array([1] * 100, pa.int32())})
    db.insert("t", rows, wait="all")
    with other.begin(fresh=True) as inserting, other.begin(fresh=True) as deleting:
        inserting.insert("t", rows)
        deleting.delete("t", "k < 10")
        with pytest.raises(SerializationConflictError), db.begin(fresh=True) as tx:
            tx.alter_table("t", types={"v": "bigint"})
        deleting.rollback()
        assert db.alter_table("t", types={"v": "bigint"})["version"] == 1
        with pytest.raises(TableChangedError):
            inserting.commit()
        inserting.rollback()
    assert db.read("t")["v"].to_pylist() == [1] * 100
    with db.begin(fresh=True) as tx:
        tx.alter_table("t", types={"k": "bigint"})
        late = other.insert("t", rows.slice(0, 1).set_column(1, "v", pa.array([1], pa.int64())), wait="all")
        with pytest.raises(SerializationConflictError, match="run it again"):
            tx.commit()
        tx.rollback()
    assert db.read("t", csn=late.csn).num_rows == 101
    db.delete("t", "k = 0")
    db.insert("t", pa.table({"k": [0], "v": [1]}))
    with db.begin(fresh=True) as tx:
        tx.alter_table("t", types={"k": "bigint"}, add={"x": "int"})
        tx.insert("t", pa.table({"k": [1 << 40], "v": [2], "x": pa.array([3], pa.int32())}))
        assert tx.sql("select count(*) n, max(k) k, sum(v) v from t").to_pylist() == [
            {"n": 101, "k": 1 << 40, "v": 102}
        ]
        with pytest.raises(RefusedError, match="change the columns first"):
            tx.alter_table("t", types={"x": "bigint"})
        tx.rollback()
    assert [one.type for one in db.table("t").columns] == ["int", "bigint"]


def test_an_open_insert_meets_a_change_of_columns(dbs: list[Database]) -> None:
    """It is refused, in memory or written out, and its rows are nowhere; a new transaction is not."""
    db = dbs[0]
    db.create_table("t", {"k": "bigint", "a": "bigint"})
    db.snapshot(min_csn=db.seen_csn).close()
    using = [other.begin(fresh=True) for other in dbs]
    for tx in using:
        tx.insert("t", pa.table({"k": [1], "a": [1]}))
    using[1].sql("select count(*) from t")
    changed = db.alter_table("t", rename={"a": "b"}, add={"c": "string"})
    assert [column["name"] for column in changed["columns"]] == ["k", "b", "c"]
    for tx in using:
        with pytest.raises(TableChangedError):
            tx.commit()
        tx.rollback()
    for other in dbs:
        with other.begin(fresh=True) as tx:
            tx.insert("t", pa.table({"k": [2], "b": [2], "c": ["x"]}))
    with db.snapshot(min_csn=max(other.seen_csn or 0 for other in dbs)) as snap:
        assert snap.read("t").to_pydict() == {"k": [2] * 3, "b": [2] * 3, "c": ["x"] * 3}


def test_a_feed_across_changes_has_the_columns_of_its_end(dbs: list[Database]) -> None:
    """The changes themselves are no rows; an update of older rows is told under the new names."""
    db = dbs[0]
    columns = {"k": "bigint not null", "a": "string"}
    db.create_table("t", columns, properties={"unique_key": "k"})
    begin = db.insert("t", pa.table({"k": [1, 2], "a": ["x", "y"]})).csn or 0
    changed = db.alter_table("t", rename={"a": "b", "k": "key"}, add={"n": "bigint"})
    assert changed["properties"]["unique_key"] == "key"
    end = db.update("t", {"n": "7"}, "key = 1", wait="all").csn or 0
    with pytest.raises(RefusedError):
        db.insert("t", pa.table({"key": [2], "b": ["z"], "n": [1]}))
    for other in dbs:
        found = other.changes("t", from_csn=begin, to_csn=end).to_table()
        assert found.select(["key", "b", "n", "_change_type"]).to_pylist() == [
            {"key": 1, "b": "x", "n": None, "_change_type": "update_preimage"},
            {"key": 1, "b": "x", "n": 7, "_change_type": "update_postimage"},
        ]
        before = other.changes("t", from_csn=begin - 1, to_csn=begin).to_table()
        assert before.select(["k", "a"]).to_pydict() == {"k": [1, 2], "a": ["x", "y"]}


def test_a_change_that_would_break_a_table_is_refused(dbs: list[Database]) -> None:
    """Partitions, order, key, names, derived tables and landing tables; the message says why."""
    db = dbs[0]
    columns = {"k": "bigint not null", "p": "bigint not null", "s": "string", "v": "bigint"}
    key = {"unique_key": "k,p"}
    db.create_table("t", columns, partition_by=["p"], sort_by=["s"], properties=key)
    db.create_table("d", {"w": "bigint"}, derived_from="t", derived_sql="select v * 2 as w from inserted")
    db.create_table("land", {"k": "bigint", "n": "int"}, properties={"landing": "on"})
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("t", {"drop": ["p"]}, "partition_by names it"),
        ("t", {"drop": ["s"]}, "sort_by names it"),
        ("t", {"drop": ["k"]}, "unique_key names it"),
        ("t", {"rename": {"p": "q"}}, "folders"),
        ("t", {"drop": ["nothing"]}, "no column nothing"),
        ("t", {"add": {"v": "bigint"}}, "twice"),
        ("t", {"add": {"_change_type": "string"}}, "reserved"),
        ("t", {"add": {"x": "bigint not null"}}, "required"),
        ("t", {"rename": {"v": "s"}}, "twice"),
        ("t", {"order": ["x"]}, "is no column"),
        ("t", {"drop": ["v"]}, r"default\.d"),
        ("t", {"rename": {"v": "x"}}, r"default\.d"),
        ("d", {"add": {"x": "bigint"}}, "derived_sql"),
        ("land", {"types": {"n": "bigint"}}, "landing"),
        ("land", {"add": {"x": "bigint generated always as (k + 1)"}}, "landing"),
        ("t", {}, "changes nothing"),
    ]
    for table, change, words in refused:
        with pytest.raises(BadRequestError, match=words):
            db.alter_table(table, **change)
    assert db.table("t")["version"] == 1
    db.alter_table("t", add={"x": "string"}, rename={"s": "t"}, order=["x"])
    assert db.table("t")["sort_by"] == ["t"]
    db.insert("t", pa.table({"k": [1], "p": [1], "t": ["a"], "v": [4], "x": ["b"]}))
    assert db.read("d").to_pydict() == {"w": [8]}


# -- Spark ---------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_parts_of_every_version(local: LocalCluster, dbs: list[Database], tmp_path: Any) -> None:
    """Attached, by a raw path and by the data source, filters pushed down; and it writes the new columns."""
    db = dbs[0]
    created = {"k": "bigint not null", "a": "bigint", "b": "string", "c": "tinyint"}
    db.create_table("t", created, partition_by=["b"])
    rows = [(number, number % 7 or None, "xy"[number % 2]) for number in range(40)]
    old = 0
    for begin in range(0, 40, 8):
        few = list(zip(*rows[begin : begin + 8], strict=True))
        small = pa.array([key - 20 for key in few[0]], pa.int8())
        old = db.insert("t", pa.table({"k": few[0], "a": few[1], "b": few[2], "c": small})).csn or 0
    db.alter_table("t", drop=["a"], add={"n": "string"})
    defaults = "f boolean not null default true, z double default 0, m decimal(38,2) default 1.5"
    db.alter_table("t", add=f"{defaults}, u timestamp default '2026-01-01T00:00:00Z', w string default 'ü'")
    db.alter_table("t", rename={"k": "key"}, add={"a": "bigint"}, order=["a"], types={"c": "int"})
    with SparkProcess("classic", tmp_path, python_workers=True) as spark:
        spark.call("join", url=local.url("r2"))
        query = (
            "select cast(null as bigint) a, id + 100 as key, 'x' as b, string(id) as n, false as f, "
            "1073741824 as c, cast(1 as double) z, cast(7 as decimal(38,2)) m, "
            "timestamp'2030-01-01 00:00:00 UTC' u, 'y' as w from range(3)"
        )
        new = spark.call("write", url=local.url("r2"), query=query, tables=["t"])
        csn = spark.call("attach", csn=new)["csn"]
        assert spark.call("schema", table="t") == [
            ["a", "bigint"], ["key", "bigint"], ["b", "string"], ["c", "int"], ["n", "string"],
            ["f", "boolean"], ["z", "double"], ["m", "decimal(38,2)"], ["u", "timestamp"], ["w", "string"],
        ]  # fmt: skip
        url = f"webhdfs://{data_address(local, 'r2')}/snapshots/{csn}/default/t"
        spark.call("raw_list", path=url, view="raw")
        spark.call("load", view="source", options={"table": "t", "url": local.url("r2"), "csnAsOf": str(csn)})
        expected = [[None, key, b, None] for key, _, b in rows]
        expected += [[None, 100 + number, "x", str(number)] for number in range(3)]
        for view in ("t", "raw", "source"):
            assert spark.sql(f"select a, key, b, n from {view} order by key") == expected, view
            counts = (
                ("key = 33", 1), ("key >= 35 and b = 'x'", 5), ("a = 3", 0), ("a is null", 43),
                ("c = -20", 1), ("c < 0", 20), ("c > 128", 3),
                ("n = '1'", 1), ("n is not null", 3), ("coalesce(n, 'none') = 'none'", 40),
                ("f", 40), ("not f", 3), ("z = 0", 40), ("z = -0.0D", 40), ("z > 0", 3), ("m = 1.5", 40),
                ("u < timestamp'2026-01-01 00:00:01 UTC'", 40),
                ("u = timestamp'2026-01-01 00:00:00 UTC'", 40),
                ("w = 'ü' and b = 'x'", 20), ("w <> 'ü'", 3), ("w is null or f is null or m is null", 0),
            )  # fmt: skip
            # One query of many scans: each pushes its own filter down, and Spark plans once. The source is
            # planned and read by a Python process for each scan, and sees few of the filters.
            filtered = counts if view != "source" else counts[:3]
            scans = [
                f"select {number} as n, count(*) from {view} where {condition}"
                for number, (condition, _) in enumerate(filtered)
            ]
            if others := [f"count_if({condition})" for condition, _ in counts[len(filtered) :]]:
                (row,) = spark.sql(f"select {', '.join(others)} from {view}")
                assert [*zip(others, row, strict=True)] == [
                    (f"count_if({condition})", count) for condition, count in counts[len(filtered) :]
                ]
            found = spark.sql(f"{' union all '.join(scans)} order by n")
            assert [(condition, row[1]) for (condition, _), row in zip(filtered, found, strict=True)] == [
                *filtered
            ], view
        spark.call("attach", csn=old)
        assert spark.sql("select k, a, b from t order by k") == [list(row) for row in rows]


def test_columns_and_rows_of_one_transaction(local: LocalCluster, dbs: list[Database]) -> None:
    """It reads older rows with its own columns; rows come after the change, and are visible with it."""
    db = dbs[0]
    db.create_table("t", {"k": "bigint", "a": "bigint"})
    old = db.insert("t", pa.table({"k": [1], "a": [7]})).csn or 0
    with db.begin() as tx:
        tx.alter_table("t", rename={"a": "b"}, add={"c": "string"})
        tx.alter_table("t", drop=["b"], add={"a": "string"})
        assert tx.sql("select * from t").to_pydict() == {"k": [1], "c": [None], "a": [None]}
        tx.insert("t", pa.table({"k": [2], "c": ["x"], "a": ["y"]}))
        with pytest.raises(RefusedError, match="change the columns first"):
            tx.alter_table("t", add={"d": "string"})
        tx.update("t", {"c": "'z'"}, "k = 1")
        assert sorted(tx.sql("select k, c from t").to_pylist(), key=str) == [
            {"k": 1, "c": "z"},
            {"k": 2, "c": "x"},
        ]
    rows = ({1: 1, 3: "z"}, {1: 2, 3: "x", 4: "y"})
    model = Model(((1, "k", "bigint"), (3, "c", "string"), (4, "a", "string")), rows)
    with dbs[1].snapshot(min_csn=tx.csn):
        require_shown(local, "r2", tx.csn or 0, "t", model)
    assert dbs[1].read("t", csn=old).to_pydict() == {"k": [1], "a": [7]}
