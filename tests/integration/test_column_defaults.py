"""Rows that come without columns, and columns that come with rows: defaults, and merges of schemas."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tests.support.clusters.agreeing import agreeing, all_follow
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.shown_tables import Model, require_shown
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import BadRequestError, SchemaMismatchError, UnsupportedInTransactionError


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas, which cut nearly every part, and agree at the end, with nothing left over."""
    yield from agreeing(
        module_cluster(
            replicas=3,
            settings=QUICK | {"cut_part_bytes_min": 1, "row_group_rows": 4, "inline_part_bytes_max": 65_536},
        )
    )


def test_rows_that_come_without_a_column_have_its_default(local: LocalCluster, dbs: list[Database]) -> None:
    """Inserts, SQL, upserts and merges, small and large; a null that is sent stays one."""
    db, other = dbs[0], dbs[1]
    db.create_table(
        "t",
        "k bigint not null, s string not null default 'new' comment 'its state', d double default 1.5, "
        "b bigint",
    )
    assert [(one.default, one.comment) for one in db.table("t").columns] == [
        (None, None), ("new", "its state"), ("1.5", None), (None, None),
    ]  # fmt: skip
    db.insert("t", pa.table({"k": [1], "b": [1]}))
    db.insert("t", pa.table({"k": [2], "b": [1], "d": pa.array([None], pa.float64())}))
    with pytest.raises(SchemaMismatchError, match=r"column b .* is missing"):
        db.insert("t", pa.table({"k": [3]}))
    with other.begin(fresh=True) as tx:
        tx.insert("t", pa.table({"k": range(10, 8010), "b": [2] * 8000}))
        tx.sql("insert into t (k) values (3)")
        tx.sql("insert into t (b, k) select b, k + 1000000 from t where k = 1")
        tx.upsert("t", pa.table({"k": [1, 4], "b": [7, 7]}), on=["k"])
        tx.merge("t", pa.table({"k": [5]}), on=["k"], when_not_matched_insert={"k": "source.k", "d": "0.5"})
    few = other.sql("select * from t where k < 10 or k > 1000000 order by k", csn=tx.csn).to_pylist()
    assert [tuple(row.values()) for row in few] == [
        (1, "new", 1.5, 7), (2, "new", None, 1), (3, "new", 1.5, None), (4, "new", 1.5, 7),
        (5, "new", 0.5, None), (1_000_001, "new", 1.5, 1),
    ]  # fmt: skip
    sql = "select s, d, count(*) as n from t where b = 2 group by all"
    many = other.sql(sql, csn=tx.csn).to_pylist()
    assert many == [{"s": "new", "d": 1.5, "n": 8000}]
    changed = db.alter_table(
        "t", default={"s": "'open'", "d": None, "b": 9}, comment={"s": None, "d": "size"}
    )
    assert [(one.default, one.comment) for one in changed.columns] == [
        (None, None), ("open", None), (None, "size"), ("9", None),
    ]  # fmt: skip
    with pytest.raises(SchemaMismatchError, match=r"column d .* is missing"):
        db.insert("t", pa.table({"k": [6]}))
    csn = db.insert("t", pa.table({"k": [6], "d": [2.0]})).csn
    assert [*other.sql("select * from t where k = 6", csn=csn).to_pylist()[0].values()] == [6, "open", 2.0, 9]
    described = db.sql(
        "select column_name, default_value, comment from system.columns where table_name = 't'"
    )
    assert {"column_name": "s", "default_value": "open", "comment": None} in described.to_pylist()
    for wrong, words in (
        ({"s": "7"}, "of type string"),
        ({"x": "7"}, "no column x"),
        ({"k": "now()"}, "no constant"),
    ):
        with pytest.raises(BadRequestError, match=words):
            db.alter_table("t", default=wrong)


def test_a_row_that_replaces_another_is_completed_first(dbs: list[Database]) -> None:
    """By insert, land and upsert alike: an old value never stays behind; a key may have a default."""
    db = dbs[0]
    columns = "k bigint not null, r string not null default 'eu', s string default 'new', v bigint default 0"
    db.create_table("t", columns, properties={"unique_key": "k,r", "on_duplicate": "replace"})
    db.create_table("plain", columns)
    old = pa.table({"k": [1, 2], "r": ["eu", "us"], "s": ["old", "old"], "v": [5, 5]})
    for table in ("t", "plain"):
        db.insert(table, old)
    db.insert("t", pa.table({"k": [1, 2]}))
    db.upsert("plain", pa.table({"k": [1, 2], "v": [6, 6]}), on=["k", "r"])
    expected = [(1, "eu", "new", 0), (2, "eu", "new", 0), (2, "us", "old", 5)]
    assert sorted(tuple(row.values()) for row in db.read("t").to_pylist()) == expected
    assert sorted(tuple(row.values()) for row in db.read("plain").to_pylist()) == [
        (1, "eu", "new", 6), (2, "eu", "new", 6), (2, "us", "old", 5),
    ]  # fmt: skip


def test_comments_and_defaults_end_no_way_back(dbs: list[Database]) -> None:
    """A table is restored over their change; statistics of a part are those of the columns that it has."""
    db = dbs[0]
    db.create_table("t", "k bigint, a string")
    then = db.insert("t", pa.table({"k": [1], "a": ["z"]})).csn
    db.delete("t", "k = 1")
    db.alter_table("t", comment={"k": "key"}, default={"a": "'x'"})
    db.restore_table("t", then)
    assert db.read("t").to_pydict() == {"k": [1], "a": ["z"]}
    db.alter_table("t", drop=["a"])
    db.alter_table("t", add="a int default 5, b string default 'q'")
    found = {one.name: (one.nulls, one.min, one.max) for one in db.statistics("t").columns}
    assert found == {"k": (0, "1", "1"), "a": (None, None, None), "b": (None, None, None)}
    assert db.sql("select max from system.columns where table_name = 't'").num_rows == 3


def test_an_added_column_shows_its_default_in_rows_of_before(
    local: LocalCluster, dbs: list[Database]
) -> None:
    """For every reader, and for statements that change them; a later default changes nothing of them."""
    db = dbs[0]
    db.create_table("t", {"k": "bigint not null"})
    inserts = [db.insert("t", pa.table({"k": range(begin, begin + 5)})).csn for begin in range(0, 30, 5)]
    old = inserts[-1] or 0
    db.alter_table("t", add="s string not null default 'was here', d double default -0.5")
    added = db.alter_table("t", default={"s": "'later'"}, rename={"d": "size"}).csn
    rows = tuple({1: k, 2: "was here", 3: -0.5} for k in range(30))
    model = Model(((1, "k", "bigint"), (2, "s", "string"), (3, "size", "double")), rows)
    for replica in local.replicas:
        with local.connect(replica).snapshot(min_csn=added):
            require_shown(local, replica, added, "t", model)
            require_shown(
                local, replica, old, "t", Model(((1, "k", "bigint"),), tuple({1: k} for k in range(30)))
            )
    db.insert("t", pa.table({"k": [30], "size": [1.0]}))
    assert db.update("t", {"size": "size * 2"}, "s = 'was here' and k < 3").rows_updated == 3
    assert db.delete("t", "s = 'was here' and size = -0.5 and k < 10").rows_deleted == 7
    db.optimize("t")
    with db.begin() as tx:
        assert tx.sql("select s, size, count(*) as n from t group by all order by all").to_pylist() == [
            {"s": "later", "size": 1.0, "n": 1},
            {"s": "was here", "size": -1.0, "n": 3},
            {"s": "was here", "size": -0.5, "n": 20},
        ]


def stored(local: LocalCluster) -> dict[str, dict[str, tuple[int, int, str]]]:
    """Return the files of parts of each replica: inode, time of the last change, and a hash of the bytes."""
    found: dict[str, dict[str, tuple[int, int, str]]] = {}
    for replica in local.replicas:
        folder = local.data_dir(replica)
        files = [path for top in ("parts", "packs") for path in (folder / top).rglob("*") if path.is_file()]
        found[replica] = {
            str(path.relative_to(folder)): (
                path.stat().st_ino,
                path.stat().st_mtime_ns,
                hashlib.sha256(path.read_bytes()).hexdigest(),
            )
            for path in files
        }
    return found


def test_an_added_column_and_a_return_write_no_file(local: LocalCluster, dbs: list[Database]) -> None:
    """Parts keep their ids and bytes, and the files on each disk are the same ones, small and large."""
    db = dbs[0]
    off = {"compaction": "off"}
    columns = "k bigint not null, p int not null, text string"
    db.create_table("t", columns, partition_by=["p"], properties=off)
    noise = random.Random(1)
    old = 0
    for keys, size in (
        ([1, 2], 1),
        ([3], 1),
        ([4, 5, 6], 2_000_000),
    ):  # the last ones are too much for a pack
        texts = [noise.randbytes(size).hex() for _ in keys]
        rows = pa.table({"k": keys, "p": pa.array([len(keys)] * len(keys), pa.int32()), "text": texts})
        old = db.insert("t", rows, wait="all").csn or 0
    all_follow(local)
    before = stored(local)
    assert all({path.split("/")[0] for path in files} == {"parts", "packs"} for files in before.values())
    parts = [(one.part, one.path, one.rows, one.length, one.checksum) for one in db.parts("t")]
    assert len(parts) == 3
    csns = [db.alter_table("t", add="s string not null default 'was here', n bigint default 7").csn]
    csns += [db.alter_table("t", add={"x": "double"}, rename={"k": "key"}, default={"n": "8"}).csn]
    csns += [db.alter_table("t", drop=["x"], order=["n"], nullable=["key"]).csn]
    all_follow(local)
    assert stored(local) == before
    dropped = db.drop_table("t") or 0
    back = db.undrop_table("t", to="back").csn
    all_follow(local)
    assert stored(local) == before
    for other in dbs:
        for csn in (old, *csns):
            found = other.parts("t", csn=csn)
            assert [(one.part, one.path, one.rows, one.length, one.checksum) for one in found] == parts
        # The parts of a table that comes back have ids of their own, and the files of before.
        found = other.parts("back", csn=back)
        assert sorted((one.path, one.rows, one.length, one.checksum) for one in found) == sorted(
            one[1:] for one in parts
        )
        expected = [{"n": 7, "s": "was here", "rows": 6}]
        assert (
            other.sql("select n, s, count(*) as rows from back group by all", csn=back).to_pylist()
            == expected
        )
        assert "default.t" not in [one.name for one in other.tables(csn=dropped)]


def test_rows_bring_their_columns_along(dbs: list[Database]) -> None:
    """In the same transaction; rows of before have nulls, and so have rows that lack columns of the table."""
    db, other = dbs[0], dbs[1]
    db.create_table("t", "k bigint not null, v bigint, s string default 'new'", sort_by=["k"])
    db.insert("t", pa.table({"k": [1], "v": [1]}))
    with db.begin() as tx:
        tx.insert("t", pa.table({"k": [2], "tags": [["a"]], "at": [dt.date(2026, 1, 1)]}), merge_schema=True)
        tx.insert("t", [{"k": 3, "v": 3}], merge_schema=True)  # no column is new, so the rows before stay
        with pytest.raises(UnsupportedInTransactionError, match="change the columns first"):
            tx.insert("t", [{"k": 4, "more": 1}], merge_schema=True)
    rows = other.sql("select * from t order by k", csn=tx.csn).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (1, 1, "new", None, None), (2, None, "new", ["a"], dt.date(2026, 1, 1)), (3, 3, "new", None, None),
    ]  # fmt: skip
    assert [one.type for one in other.table("t", csn=tx.csn).columns[3:]] == ["array<string>", "date"]
    for rows_, words in (
        (pa.table({"k": [9], "V": [1]}), "column V is not in the table"),
        (pa.table({"v": [9]}), r"column k \(bigint\) is missing"),
        (pa.table({"k": [9], "v": ["text"]}), "column v is string"),
    ):
        with pytest.raises(SchemaMismatchError, match=words):
            db.insert("t", rows_, merge_schema=True)


def test_many_writers_bring_columns_at_once(dbs: list[Database]) -> None:
    """Each begins again after the change of another one; no row and no column is lost or doubled."""
    dbs[0].create_table("t", {"k": "bigint"})

    def write(number: int) -> None:
        rows = pa.table({"k": [number], f"c{number % 4}": [number]})
        dbs[number % 3].insert("t", rows, merge_schema=True, label=f"many-{number}")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(24)))
    with dbs[0].begin(fresh=True) as tx:
        found = tx.read("t")
        tx.rollback()
    assert sorted(found.column_names) == ["c0", "c1", "c2", "c3", "k"]
    assert sorted(found["k"].to_pylist()) == [*range(24)]
    for row in found.to_pylist():
        assert {name: value for name, value in row.items() if value is not None} == {
            "k": row["k"], f"c{row['k'] % 4}": row["k"],
        }  # fmt: skip
