"""Tables that get back the columns of before, and files of before that come where the columns are others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.agreeing import agreeing
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.shown_tables import Model, require_shown
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    SerializationConflictError,
    TableChangedError,
    UnknownTableError,
    UnsupportedInTransactionError,
)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas, which agree at the end, with nothing left over."""
    yield from agreeing(module_cluster(replicas=3, settings=QUICK))


def test_a_table_is_restored_with_the_columns_of_then(local: LocalCluster, dbs: list[Database]) -> None:
    """Names, types, defaults and comments come back, no byte is written, and later columns get other ids."""
    db = dbs[0]
    db.create_table("t", "k bigint not null, a int default 7 comment 'first', b string", sort_by=["k"])
    rows = pa.table({"k": [1, 2], "a": pa.array([10, 20], pa.int32()), "b": ["x", "y"]})
    then = db.insert("t", rows).csn or 0
    parts = {part.part: part.checksum for part in db.parts("t", csn=then)}
    db.alter_table("t", drop=["b"], rename={"k": "key"}, types={"a": "bigint"}, default={"a": 8}, add="c int")
    wide = db.insert("t", pa.table({"key": [1 << 40], "a": [1 << 40], "c": [1]}), wait="all").csn or 0
    columns = dbs[1].table("t", csn=then).columns
    done = dbs[1].restore_table("t", then, wait="all")
    assert (done.rows_inserted, done.rows_deleted) == (2, 3)
    model = Model(((1, "k", "bigint"), (2, "a", "int"), (3, "b", "string")), tuple(ids_of(rows)))
    for replica in local.replicas:
        require_shown(local, replica, done.csn or 0, "t", model)
    assert {part.checksum for part in db.parts("t", csn=done.csn)} == {*parts.values()}
    assert db.table("t").columns == columns
    assert db.read("t", csn=wide).schema.names == ["key", "a", "c"]
    added = db.alter_table("t", add="c int")
    assert [column.id for column in added.columns] == [1, 2, 3, 5], (
        "the id of the dropped column is not given again"
    )
    db.insert("t", pa.table({"k": [3], "b": ["z"], "c": [4]}))
    assert db.read("t").sort_by("k").to_pydict() == {
        "k": [1, 2, 3], "a": [10, 20, 7], "b": ["x", "y", "z"], "c": [None, None, 4],
    }  # fmt: skip
    # A restore can be taken back, too.
    back = db.restore_table("t", wide, wait="all").csn or 0
    assert dbs[2].read("t", csn=back).sort_by("key").to_pydict() == {
        "key": [1, 2, 1 << 40], "a": [10, 20, 1 << 40], "c": [None, None, 1],
    }  # fmt: skip


def ids_of(rows: pa.Table) -> list[dict[int, Any]]:
    """Return rows as the model keeps them, of columns that were not changed."""
    return [dict(enumerate(row.values(), 1)) for row in rows.to_pylist()]


def test_a_restore_of_other_columns_meets_other_changes(local: LocalCluster, dbs: list[Database]) -> None:
    """Rows of the columns of now conflict with it, in this transaction and in others; readers come along."""
    db = dbs[0]
    db.create_table("t", {"k": "bigint"})
    db.create_table("d", {"k": "bigint"}, derived_from="t", derived_sql="select k from inserted")
    then = db.insert("t", pa.table({"k": [1]})).csn
    db.alter_table("t", add="v int")
    with db.begin() as tx:
        tx.insert("t", pa.table({"k": [2], "v": pa.array([2], pa.int32())}))
        with pytest.raises(UnsupportedInTransactionError, match="with the columns of before"):
            tx.restore_table("t", then)
        tx.rollback()
    with db.begin() as tx, dbs[1].begin() as other:
        other.insert("t", pa.table({"k": [3], "v": pa.array([3], pa.int32())}))
        tx.restore_table("t", then)
        assert tx.read("t").to_pydict() == {"k": [1]}
        tx.insert("t", pa.table({"k": [4]}))
        tx.commit(wait="all")
        with pytest.raises(TableChangedError):
            other.commit()
    assert sorted(db.read("t")["k"].to_pylist()) == [1, 4]
    db.alter_table("t", add="w int")
    late = db.insert("t", pa.table({"k": [5], "w": pa.array([5], pa.int32())})).csn
    db.create_table("e", "k bigint, w int", derived_from="t", derived_sql="select k, w from inserted")
    with pytest.raises(BadRequestError, match=r"default\.e"):
        db.restore_table("t", then)
    assert db.read("t", csn=late).schema.names == ["k", "w"]
    db.drop_table("e")
    db.drop_table("d")


def test_parts_from_before_a_restore_are_shown_right(local: LocalCluster, dbs: list[Database]) -> None:
    """The definition of then knows what files of later CSNs have: for feeds, and for partitions of now."""
    db = dbs[0]
    columns = "p int, k int not null, a string, b string"
    db.create_table("t", columns, partition_by=["p"], properties={"compaction": "off"})

    def row(p: int, k: int, **others: Any) -> pa.Table:
        types = {"p": pa.int32(), "k": pa.int32(), "v": pa.int32()}
        given = {"p": p, "k": k, **others}
        return pa.table({name: pa.array([value], types.get(name)) for name, value in given.items()})

    then = db.insert("t", row(1, 10, a="a", b="b")).csn or 0
    db.alter_table("t", rename={"a": "b", "b": "a"})  # the names are exchanged
    swapped = db.insert("t", row(1, 11, b="a", a="b")).csn or 0
    db.alter_table("t", drop=["a"], add="c string default 'c'", types={"k": "bigint"})
    large = pa.table({"p": pa.array([1], pa.int32()), "k": [1 << 40], "b": ["a"], "c": ["z"]})
    wide = db.insert("t", large).csn or 0
    done = db.restore_table("t", then, wait="all").csn or 0
    model = Model(
        ((1, "p", "int"), (2, "k", "int"), (3, "a", "string"), (4, "b", "string")),
        ({1: 1, 2: 10, 3: "a", 4: "b"},),
    )
    for replica in local.replicas:
        require_shown(local, replica, done, "t", model)
    gone = [
        {"p": 1, "k": 10, "a": "a", "b": None},  # written again when its type became wider
        {"p": 1, "k": 11, "a": "a", "b": None},
        {"p": 1, "k": 1 << 40, "a": "a", "b": None},
    ]
    for other in dbs:
        with other.changes("t", wide, done) as feed:
            found = feed.to_table().to_pylist()
        rows = [{name: row[name] for name in "pkab"} for row in found if row["_change_type"] == "delete"]
        assert sorted(rows, key=lambda row: row["k"]) == gone
        assert len(found) == len(gone) + 1
        net = other.diff("t", swapped, done).to_table().to_pylist()
        assert [(row["_change_type"], row["k"]) for row in net] == [("delete", 11)]
    # Of the files of before, those with the same pages come back into the table of now, under its names.
    db.restore_table("t", swapped, partition={"p": 1})
    both = [{"p": 1, "k": k, "a": "a", "b": "b"} for k in (10, 11)]
    assert db.read("t").sort_by("k").to_pylist() == both
    with pytest.raises(BadRequestError, match=r"k of table default\.t is int now, and bigint in part"):
        db.restore_table("t", wide, partition={"p": 1})
    assert db.read("t").sort_by("k").to_pylist() == both
    # A column that was dropped stays hidden, whatever was restored in between.
    db.alter_table("t", add="v int default 1")
    added = db.insert("t", row(1, 12, a="a", b="b", v=2)).csn or 0
    dropped = db.alter_table("t", drop=["v"])["csn"]
    db.restore_table("t", added)
    db.restore_table("t", done)
    last = db.restore_table("t", dropped, wait="all").csn or 0
    shown = (*model.rows, {1: 1, 2: 11, 3: "a", 4: "b"}, {1: 1, 2: 12, 3: "a", 4: "b"})
    require_shown(local, "r2", last, "t", replace(model, rows=shown))


def test_the_difference_over_a_column_that_was_away(local: LocalCluster, dbs: list[Database]) -> None:
    """Its deletes are the rows of the first snapshot, although compaction has written them without it."""
    db = dbs[0]
    db.create_table("t", "k bigint, v int")
    then = db.insert("t", pa.table({"k": [1], "v": pa.array([10], pa.int32())})).csn
    first = db.insert("t", pa.table({"k": [2], "v": pa.array([20], pa.int32())})).csn or 0
    db.alter_table("t", drop=["v"])
    db.optimize("t")
    db.restore_table("t", then)
    last = db.insert("t", pa.table({"k": [3], "v": pa.array([30], pa.int32())}), wait="all").csn
    for other in dbs:
        net = other.diff("t", first, last).to_table().select(["_change_type", "k", "v"]).to_pylist()
        assert [tuple(row.values()) for row in net] == [("delete", 2, 20), ("insert", 3, 30)]


def test_a_restore_of_columns_conflicts_with_rows_of_others(local: LocalCluster, dbs: list[Database]) -> None:
    """Rows that were committed since its snapshot have other files, or pages of other types."""
    db = dbs[0]
    db.create_table("t", "k bigint not null, b string")
    then = db.insert("t", pa.table({"k": [1], "b": ["x"]})).csn or 0
    db.alter_table("t", drop=["b"])
    with db.begin() as tx:
        csn = dbs[1].insert("t", pa.table({"k": [2]}), wait="all").csn or 0
        with pytest.raises(BadRequestError, match="in a transaction that begins later"):
            tx.restore_table("t", csn)
        tx.rollback()
    with db.begin() as tx:
        dbs[1].insert("t", pa.table({"k": [3]}), wait="all")
        tx.restore_table("t", then)
        with pytest.raises(SerializationConflictError):
            tx.commit()
    assert sorted(db.read("t")["k"].to_pylist()) == [1, 2, 3]
    # Without a change of files it goes on: defaults and comments come back beside rows of this transaction.
    db.restore_table("t", then)
    db.alter_table("t", comment={"k": "key"}, default={"b": "'y'"})
    with db.begin() as tx:
        tx.insert("t", pa.table({"k": [4]}))
        tx.restore_table("t", then)
    assert db.read("t").to_pydict() == {"k": [1], "b": ["x"]}
    assert (db.table("t").columns[0].comment, db.table("t").columns[1].default) == (None, None)
    # A partition whose column has got a wider type has the same folders.
    db.create_table("parted", "p int, k int", partition_by=["p"])
    db.insert("parted", pa.table({"p": pa.array([1], pa.int32()), "k": pa.array([1], pa.int32())}))
    wide = db.alter_table("parted", types={"p": "bigint"})["csn"]
    db.truncate("parted")
    db.restore_table("parted", wide, partition={"p": 1})
    assert db.read("parted").to_pydict() == {"k": [1], "p": [1]}


def test_a_change_of_types_whose_table_is_dropped_meanwhile(
    dbs: list[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins again, and tells that the table does not exist."""
    dbs[0].create_table("t", {"k": "int"})
    dbs[0].insert("t", pa.table({"k": pa.array([1], pa.int32())}), wait="all")
    real, calls = Transaction.alter_table, itertools.count()

    def alter(tx: Transaction, *args: Any, **named: Any) -> Any:
        made = real(tx, *args, **named)
        if not next(calls):
            dropped = dbs[1].drop_table("t")
            dbs[0].snapshot(min_csn=dropped).close()  # its home has ended the transaction by then
        return made

    monkeypatch.setattr(Transaction, "alter_table", alter)
    with pytest.raises(UnknownTableError):
        dbs[0].alter_table("t", types={"k": "bigint"})


def test_parts_of_before_go_where_they_can_be_shown(local: LocalCluster, dbs: list[Database]) -> None:
    """Into partitions with types of the same pages, into clones, back after a drop, and into equal tables."""
    db = dbs[0]
    columns = "p int, k int not null, f float"
    db.create_table("t", columns, partition_by=["p"], properties={"compaction": "off"})
    rows = pa.table({"p": [1, 1, 2], "k": [10, 11, 20], "f": [0.5, 1.5, 2.5]})
    then = db.insert("t", rows.cast(pa.schema({"p": pa.int32(), "k": pa.int32(), "f": pa.float32()}))).csn
    db.alter_table("t", add="s string default 'new'", rename={"k": "key"})
    db.clone_table("t", "copy")
    assert db.alter_table("copy", comment={"s": "of the copy"}).columns != db.table("t").columns
    db.delete("t", "key = 10")
    db.restore_table("t", then, partition={"p": 1}, wait="all")
    shown = {"p": [1, 1, 2], "key": [10, 11, 20], "f": [0.5, 1.5, 2.5], "s": ["new"] * 3}
    for other in dbs:
        for name in ("t", "copy"):
            with other.snapshot(min_csn=db.seen_csn) as snap:
                assert {one: snap.read(name).sort_by("key")[one].to_pylist() for one in shown} == shown
    # The clone has had the same changes, so parts of before move into it; another table has not.
    db.move_partition("t", {"p": 2}, "copy")
    assert sorted(db.read("copy")["key"].to_pylist()) == [10, 11, 20, 20]
    db.create_table("other", "p int, key int not null, f float, s string", partition_by=["p"])
    with pytest.raises(BadRequestError, match=r"in another way than those of default\.other"):
        db.move_partition("t", {"p": 1}, "other")
    db.drop_table("copy")
    assert db.undrop_table("copy").rows == 4
    assert db.read("copy", where="s = 'new'").num_rows == 4
    # A type whose pages are others comes back with the whole table only.
    db.alter_table("t", types={"f": "double"})
    with pytest.raises(BadRequestError, match=r"f of table default\.t is double now, and float in part"):
        db.restore_table("t", then, partition={"p": 1})
    assert db.read("t").schema.field("f").type == pa.float64()
    db.restore_table("t", then)
    assert db.read("t").schema.field("f").type == pa.float32()
    assert db.read("t").sort_by("k").to_pydict() == rows.to_pydict()
