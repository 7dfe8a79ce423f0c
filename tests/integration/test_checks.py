"""Checks of tables: no row that breaks one is ever visible, in whichever way it comes, on any replica."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.clusters.agreeing import agreeing
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    CheckViolationError,
    RefusedError,
    SerializationConflictError,
    TableChangedError,
    TooLargeError,
    TransactionClosedError,
)

COLUMNS = "id bigint not null, pieces int, state string, constraint positive check (pieces > 0)"
#: The same without the check, and with a partition for each state.
LOOSE = "id bigint not null, pieces int, state string"
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("pieces", pa.int32()), ("state", pa.string())])


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas, which agree at the end, and have nothing left over."""
    yield from agreeing(
        module_cluster(replicas=3, settings=QUICK | {"checks_max": 5, "check_bytes_max": 200})
    )


@pytest.fixture
def db(dbs: list[Database]) -> Database:
    """A client, and the table `t` with a check and two rows; a null breaks no check."""
    dbs[0].create_table("t", COLUMNS)
    dbs[0].insert("t", rows((1, 7, "new"), (2, None, None)), wait="all")
    return dbs[0]


def rows(*given: tuple[int, int | None, str | None]) -> pa.Table:
    """Return rows."""
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in given], SCHEMA)


def ids(db: Database, table: str = "t") -> list[int]:
    """Return the ids of the rows."""
    return sorted(db.read(table)["id"].to_pylist())


BAD = rows((3, 1, "new"), (4, -1, "new"), (5, 0, "new"))
MANY = pa.table({"id": range(50_000), "pieces": [-1] * 50_000, "state": ["x" * 20] * 50_000}, SCHEMA)


def by_file(tx: Transaction, folder: Path) -> object:
    """Import a file with rows that break the check."""
    pq.write_table(BAD, folder / "bad.parquet")
    return tx.import_files("t", folder / "bad.parquet")


WAYS = {
    "insert": lambda tx, _: tx.insert("t", BAD),
    "insert of many rows": lambda tx, _: tx.insert("t", MANY),
    "insert select": lambda tx, _: tx.sql("insert into t select id + 10, -pieces, state from t where id = 1"),
    "update": lambda tx, _: tx.update("t", {"pieces": "pieces - 7"}, where="id = 1"),
    "upsert": lambda tx, _: tx.upsert("t", BAD, on=["id"]),
    "merge": lambda tx, _: tx.merge(
        "t", rows((1, 7, "x")), on=["id"], when_matched_update={"pieces": "-target.pieces"}
    ),
    "import": by_file,
}


@pytest.mark.parametrize("way", WAYS)
def test_no_way_leads_around_a_check(db: Database, tmp_path: Path, way: str) -> None:
    """The statement is refused with the check, and the transaction with it; no row of it is there."""
    with pytest.raises(CheckViolationError, match="positive") as caught, db.begin() as tx:
        WAYS[way](tx, tmp_path)
    details = caught.value.details
    assert (details["table"], details["check"]) == ("default.t", "positive")
    assert details["rows"] >= 1
    assert int(details["row"]["pieces"]) <= 0
    assert ids(db) == [1, 2]


def test_a_partition_is_moved_only_if_its_rows_fit(db: Database) -> None:
    """The other table judges the parts, which nobody writes again."""
    for name, columns in (("loose", LOOSE), ("strict", COLUMNS)):
        db.create_table(name, columns, partition_by=["state"])
    db.insert("loose", rows((3, 1, "good"), (4, 1, "bad"), (5, -1, "bad")))
    with pytest.raises(CheckViolationError, match="pieces=-1"):
        db.move_partition("loose", {"state": "bad"}, into="strict")
    db.move_partition("loose", {"state": "good"}, into="strict")
    assert (ids(db, "loose"), ids(db, "strict")) == ([4, 5], [3])


@pytest.mark.parametrize("given", [BAD, MANY], ids=["few", "many"])
def test_a_statement_of_its_own_is_refused_too(db: Database, given: pa.Table) -> None:
    """Rows that fit are taken by the same call; the refusal names how many rows break the check, and one."""
    with pytest.raises(CheckViolationError, match=r"check positive of table default\.t, which is") as caught:
        db.insert("t", given)
    assert caught.value.details["rows"] == (2 if given is BAD else 50_000)
    db.insert("t", rows((3, 1, "new")))
    assert ids(db) == [1, 2, 3]


def test_rows_of_several_ways_that_keep_a_check_are_taken(dbs: list[Database], tmp_path: Path) -> None:
    """All of one transaction, with a delete, which judges nothing; every replica shows them."""
    dbs[0].create_table("t", COLUMNS)
    with dbs[0].begin() as tx:
        tx.insert("t", rows((1, 7, "new"), (2, 3, "new")))
        tx.update("t", {"pieces": "pieces + 1"}, where="id = 1")
        tx.upsert("t", rows((2, 5, "old"), (3, 1, "new")), on=["id"])
        tx.sql("insert into t select id + 10, pieces, state from t")
        tx.delete("t", "id = 11")
        pq.write_table(rows((4, None, "x")), tmp_path / "good.parquet")
        tx.import_files("t", tmp_path / "good.parquet")
        done = tx.commit(wait="all")
    expected = [(1, 8), (2, 5), (3, 1), (4, None), (12, 5), (13, 1)]
    for one in dbs:
        found = one.read("t", csn=done.csn)
        assert sorted(zip(*found.select(["id", "pieces"]).to_pydict().values(), strict=True)) == expected
        assert one.table("t").checks == {"positive": "pieces > 0"}


def test_a_check_of_several_columns_is_added_and_taken_away(db: Database) -> None:
    """The rows that are there must keep it; then each new row must; then none."""
    told = "state = 'done' or pieces > 5"
    with pytest.raises(CheckViolationError, match=r"check told of table default\.t"):
        db.alter_table("t", checks={"told": "state is not null"})
    assert db.table("t").checks == {"positive": "pieces > 0"}
    assert db.alter_table("t", checks={"told": told}).checks == {"positive": "pieces > 0", "told": told}
    with pytest.raises(CheckViolationError, match="told") as caught:
        db.insert("t", rows((3, 1, "new")))
    assert caught.value.details["row"] == {"pieces": "1", "state": "new"}
    db.insert("t", rows((3, 1, "done")))
    db.alter_table("t", checks={"told": None})
    db.insert("t", rows((4, 1, "new")))
    assert ids(db) == [1, 2, 3, 4]


def test_a_transaction_goes_on_when_its_check_is_refused(db: Database) -> None:
    """A refused change of a table changes nothing; the rows of the transaction itself are judged, too."""
    with db.begin() as tx:
        tx.insert("t", rows((3, 1, "new")))
        with pytest.raises(CheckViolationError):
            tx.alter_table("t", checks={"many": "pieces > 1"})
        tx.update("t", {"pieces": "2"}, where="id = 3")
        tx.alter_table("t", checks={"many": "pieces > 1"})
        with pytest.raises(CheckViolationError):
            tx.insert("t", rows((4, 1, "new")))
        tx.rollback()
    assert ids(db) == [1, 2]
    assert db.table("t").checks == {"positive": "pieces > 0"}


def test_rows_that_others_insert_meanwhile_are_not_missed(dbs: list[Database], db: Database) -> None:
    """A check that did not see them is refused; an insert that did not know of the check is, too."""
    tx = db.begin()
    tx.alter_table("t", checks={"many": "pieces > 1"})
    dbs[1].insert("t", rows((3, 1, "new")), wait="all")
    with pytest.raises((SerializationConflictError, TableChangedError)):
        tx.commit()
    late = dbs[1].begin(fresh=True)
    late.insert("t", rows((4, 2, "new")))
    db.alter_table("t", checks={"odd": "state = 'new' or state is null"})
    with pytest.raises(TableChangedError):
        late.commit()
    assert ids(db) == [1, 2, 3]


def test_a_check_is_added_while_others_insert(dbs: list[Database], db: Database) -> None:
    """The call begins again until it has seen all rows; no row breaks the check at any later CSN."""
    ended = threading.Event()

    def insert() -> None:
        number = 10
        while not ended.wait(0.02):
            number += 1
            with contextlib.suppress(CheckViolationError, TableChangedError, TransactionClosedError):
                dbs[1].insert("t", rows((number, number % 7, "new")))

    thread = threading.Thread(target=insert)
    db.alter_table("t", checks={"positive": None})
    thread.start()
    try:
        added = 0
        while not added:
            # Compaction and the inserts may be in the way of either.
            with contextlib.suppress(CheckViolationError, SerializationConflictError):
                db.delete("t", "pieces < 1")
                added = db.alter_table("t", checks={"positive": "pieces >= 1"}).csn
    finally:
        ended.set()
        thread.join()
    for one in dbs:
        last = one.snapshot(min_csn=db.seen_csn)
        with last:
            for csn in range(added, last.csn + 1):
                assert one.sql("select count(*) as n from t where pieces < 1", csn=csn).to_pylist() == [
                    {"n": 0}
                ]


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("pieces >", "is not one SQL expression"),
        ("pieces > 0) or (true", "is not one SQL expression"),
        ("pieces", "is integer; expected a condition"),
        ("missing > 0", "missing"),
        ("sum(pieces) > 0", "aggregate"),
        ("row_number() over () > 0", "window"),
        ("pieces in (select 1)", "no subquery"),
        ("exists (from t)", "no subquery"),
        ("random() < 2", "another one at another time"),
        ("now() > timestamp '2020-01-01'", "another one at another time"),
        ("current_date > date '2020-01-01'", "another one at another time"),
        ("ago(interval 1 day) is null", "another one at another time"),
        ("current_setting('memory_limit') is null", "current_setting is not offered"),
        ("pieces > ?", "parameter"),
        ("x" * 201, "check_bytes_max"),
        ("", "expected 1 to 200"),
    ],
)
@pytest.mark.few(6)
def test_sql_that_is_no_check_is_refused(db: Database, sql: str, problem: str) -> None:
    """For a new table and for one that exists; nothing is created, and nothing changes."""
    with pytest.raises(BadRequestError, match=problem):
        db.create_table("other", COLUMNS, checks={"wrong": sql})
    with pytest.raises(BadRequestError, match=problem):
        db.alter_table("t", checks={"wrong": sql})
    assert [one.name for one in db.tables()] == ["default.t"]
    assert db.table("t").checks == {"positive": "pieces > 0"}


def test_names_and_numbers_of_checks(db: Database) -> None:
    """A name is given once, ignoring case; a check that is not there cannot be taken away."""
    with pytest.raises(BadRequestError, match="has a check positive already"):
        db.alter_table("t", checks={"Positive": "pieces > 1"})
    with pytest.raises(BadRequestError, match="has no check 'none'; it has: positive"):
        db.alter_table("t", checks={"none": None})
    with pytest.raises(BadRequestError, match="is empty"):
        db.alter_table("t", checks={"": "pieces > 1"})
    with pytest.raises(BadRequestError, match="two checks have the name a"):
        db.create_table("u", "n int, constraint a check (n > 1), constraint a check (n > 2)")
    with pytest.raises(TooLargeError, match=r"6 checks; the limit is 5 \(checks_max\)"):
        db.create_table("u", "n int", checks={f"c{number}": "n > 0" for number in range(6)})
    with pytest.raises(BadRequestError, match="landing"):
        db.create_table("u", "n int, constraint a check (n > 1)", properties={"landing": "on"})
    with pytest.raises(CheckViolationError, match="n=-1"):
        db.create_table("u", sql="select -1 as n", checks={"a b": "n > 0"})


def test_a_check_that_fails_for_a_row_refuses_the_row(db: Database) -> None:
    """Its SQL is wrong for these values alone; the text of the error names the check."""
    db.alter_table("t", checks={"number": "cast(nullif(state, 'new') as int) > 0"})
    db.insert("t", rows((3, 1, "12")))
    with pytest.raises(BadRequestError, match=r"check of table default\.t"):
        db.insert("t", rows((4, 1, "twelve")))
    assert ids(db) == [1, 2, 3]


def test_columns_of_a_check_stay(db: Database) -> None:
    """They are neither dropped nor renamed; other columns are; a wider type judges all rows again."""
    for change in ({"drop": ["pieces"]}, {"rename": {"pieces": "count"}}):
        with pytest.raises(BadRequestError, match="check positive names it"):
            db.alter_table("t", **change)
    db.alter_table("t", drop=["state"], types={"pieces": "bigint"})
    with pytest.raises(CheckViolationError):
        db.insert("t", pa.table({"id": [3], "pieces": [0]}))
    made = db.alter_table("t", rename={"pieces": "count"}, checks={"positive": None, "counted": "count > 0"})
    assert made.checks == {"counted": "count > 0"}
    with pytest.raises(CheckViolationError, match="count=0"):
        db.insert("t", pa.table({"id": [3], "count": [0]}))
    assert ids(db) == [1, 2]


def test_a_float_that_becomes_wider_is_judged_again(dbs: list[Database]) -> None:
    """A float that equals 0.1 is another number as a double."""
    dbs[0].create_table("f", "x float, constraint small check (x <= 0.1)")
    dbs[0].insert("f", pa.table({"x": pa.array([0.1], pa.float32())}))
    with pytest.raises(CheckViolationError):
        dbs[0].alter_table("f", types={"x": "double"})
    assert dbs[0].table("f").columns[0].type == "float"


def test_old_rows_come_back_only_if_they_keep_the_checks_of_now(db: Database) -> None:
    """Restored, cloned and undropped tables; a clone has the checks, and keeps them."""
    db.alter_table("t", checks={"positive": None})
    before = db.insert("t", rows((3, -3, "new"))).csn
    db.delete("t", "id = 3")
    good = db.insert("t", rows((4, 4, "new"))).csn
    db.alter_table("t", checks={"positive": "pieces > 0"})
    db.delete("t", "id = 4")
    with pytest.raises(CheckViolationError, match="pieces=-3"):
        db.restore_table("t", before)
    assert ids(db) == [1, 2]
    db.restore_table("t", good)
    assert ids(db) == [1, 2, 4]
    db.clone_table("t", "copy")
    with pytest.raises(CheckViolationError):
        db.insert("copy", rows((5, 0, "new")))
    db.drop_table("copy")
    db.undrop_table("copy")
    with pytest.raises(CheckViolationError):
        db.insert("copy", rows((5, 0, "new")))
    db.clone_table("t", "then", csn=before)
    db.insert("then", rows((5, 0, "new")))
    assert (ids(db, "copy"), ids(db, "then")) == ([1, 2, 4], [1, 2, 3, 5])


def test_a_partition_of_before_is_judged_although_the_check_has_its_text(db: Database) -> None:
    """The column that the check names is another one by now."""
    db.create_table("p", "day string, a int, b int", partition_by=["day"], checks={"c": "a > 0"})
    then = db.insert("p", [{"day": "x", "a": 1, "b": -1}]).csn
    db.delete("p", "b < 0")
    db.alter_table("p", rename={"a": "z", "b": "a"}, checks={"c": None})
    db.alter_table("p", checks={"c": "a > 0"})
    with pytest.raises(CheckViolationError, match="a=-1"):
        db.restore_table("p", then, partition={"day": "x"})
    assert db.read("p").num_rows == 0


def test_a_drop_does_not_forget_what_its_transaction_has_deleted(db: Database) -> None:
    """The rows come back with the table, and the check of its last definition judges them."""
    db.insert("t", rows((3, 3, "new")))
    with db.begin() as tx:
        tx.delete("t", "id = 3")
        tx.alter_table("t", checks={"few": "id < 3"})
        tx.drop_table("t")
    with pytest.raises(CheckViolationError, match="id=3"):
        db.undrop_table("t")
    assert db.tables() == []


def test_a_table_gets_another_name_and_keeps_its_checks(db: Database) -> None:
    """No check names its table, so nothing in it changes."""
    with pytest.raises(BadRequestError, match="named without their table"):
        db.alter_table("t", checks={"named": "t.pieces > 0"})
    db.rename_table("t", "u")
    with pytest.raises(CheckViolationError):
        db.insert("u", BAD)
    db.insert("u", rows((3, 1, "new")))
    assert ids(db, "u") == [1, 2, 3]


def test_inserts_of_a_transaction_that_end_while_its_check_is_added(db: Database) -> None:
    """Whichever ends first: no row that breaks the check is committed."""
    db.alter_table("t", checks={"positive": None})
    for number in range(6):
        tx = db.begin(fresh=True)
        with ThreadPoolExecutor(2) as threads:
            inserted = threads.submit(tx.insert, "t", MANY if number % 2 else BAD)
            added = threads.submit(tx.alter_table, "t", checks={"positive": "pieces > 0"})
        ended = {inserted.exception() is None, added.exception() is None}
        with contextlib.suppress(RefusedError):
            tx.commit()
        checked = "positive" in db.table("t").checks
        broken = db.sql("select count(*) as n from t where pieces <= 0").to_pylist()[0]["n"]
        assert not (checked and broken), (number, ended)
        db.delete("t", "pieces <= 0")
        if checked:
            db.alter_table("t", checks={"positive": None})


def test_a_table_is_not_restored_below_its_checks(db: Database) -> None:
    """The columns of then have no place for a check of now; it is taken away first."""
    before = db.insert("t", rows((3, 3, "new"))).csn
    db.alter_table("t", rename={"state": "phase"})
    db.alter_table("t", checks={"named": "phase is null or phase <> ''"})
    with pytest.raises(BadRequestError, match=r"check named of table default\.t names column phase"):
        db.restore_table("t", before)
    db.alter_table("t", checks={"named": None})
    db.restore_table("t", before)
    assert db.read("t").column_names == SCHEMA.names


def test_derived_rows_keep_the_checks_of_their_table(db: Database) -> None:
    """A row that a derived table cannot take refuses the insert into its source."""
    db.create_table(
        "sums",
        "state string, pieces bigint, constraint few check (pieces < 100)",
        derived_from="t",
        derived_sql="select state, sum(pieces) as pieces from inserted group by state",
    )
    db.insert("t", rows((3, 60, "a"), (4, 39, "a")))
    with pytest.raises(CheckViolationError, match=r"check few of table default\.sums"):
        db.insert("t", rows((5, 60, "a"), (6, 40, "a")))
    assert ids(db) == [1, 2, 3, 4]


def test_text_is_checked_as_json_on_request(db: Database) -> None:
    """A check asks for it; what is inside of the text is read by SQL."""
    db.create_table("docs", "id int, doc string, constraint doc_is_json check (json_valid(doc))")
    given = {"id": pa.array([1, 2, 3], pa.int32()), "doc": ['{"a": [1, 2]}', "null", None]}
    db.insert("docs", pa.table(given))
    with pytest.raises(CheckViolationError, match=r"one has doc=\{'a': 1\}"):
        db.insert("docs", pa.table({"id": pa.array([4], pa.int32()), "doc": ["{'a': 1}"]}))
    found = db.sql("select json_extract_string(doc, '$.a[1]') as a from docs where id = 1")
    assert found.to_pylist() == [{"a": "2"}]
