"""Tables that become again as they were, and clones of tables, without a byte of rows."""

from __future__ import annotations

import itertools
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import horizons, require_clean_audit
from tests.support.waiting import eventually
from tests.support.zookeeper.servers import READY_TIMEOUT_S
from tidelock.cli import app as cli
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    SerializationConflictError,
    SnapshotTooOldError,
    TableExistsError,
    TableModeError,
    TidelockError,
    UnknownTableError,
    UnknownTagError,
    UnsupportedInTransactionError,
)

SCHEMA: Final = pa.schema([pa.field("y", pa.int32()), pa.field("n", pa.int64(), nullable=False)])
REPLICAS: Final = ("r1", "r2", "r3")
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module, in which history ends as soon as nothing holds it."""
    return module_cluster(
        settings={
            **QUICK,
            "history_retention_s": 0.5,
            "horizon_interval_s": 0.2,
            "unpinned_ttl_s": 1,
            "clean_interval_s": 0.5,
            "lock_wait_s": 0.0,
        }
    )


@pytest.fixture(scope="module")
def one(local: LocalCluster) -> Iterator[Database]:
    """A session at r1."""
    with local.connect("r1") as db:
        yield db


@pytest.fixture(scope="module")
def two(local: LocalCluster) -> Iterator[Database]:
    """A session at r2."""
    with local.connect("r2") as db:
        yield db


def rows(year: int, *numbers: int) -> pa.Table:
    """Return rows of one partition."""
    return pa.table({"y": [year] * len(numbers), "n": numbers}, SCHEMA)


@pytest.fixture
def table(one: Database) -> Iterator[str]:
    """A table with rows in two partitions, and the tag `then` of this state."""
    name = f"t{next(NUMBERS)}"
    one.create_table(name, SCHEMA, partition_by=["y"])
    one.insert(name, rows(1, 10, 11))
    one.insert(name, rows(1, 12))
    one.insert(name, rows(2, 20), wait="all")
    one.tag("then")
    yield name
    one.untag("then")


def numbers(db: Database | Transaction, table: str) -> list[int]:
    """Return what is in the table."""
    return sorted(db.read(table, ["n"])["n"].to_pylist())


def numbers_at(db: Database, table: str, csn: int) -> list[int]:
    """Return what is in the table at the CSN of what a session at another replica may have done."""
    return sorted(db.read(table, ["n"], csn=csn)["n"].to_pylist())


def damage(db: Database, table: str) -> None:
    """Do all that changes a table, so that nothing of its parts is as it was."""
    db.delete(table, "n = 11")
    db.drop_partition(table, {"y": 2})
    db.insert(table, rows(1, 99))
    db.insert(table, rows(3, 30))
    db.optimize(table)


def files(local: LocalCluster, replica: str, table: str) -> set[tuple[str, int]]:
    """Return the places of the bytes of all parts of a table, by its id, at a replica."""
    name = table if "." in table else f"default.{table}"
    sql = "SELECT file, offset FROM parts WHERE table_name = ? AND state = 'held'"
    with closing(sqlite3.connect(f"file:{local.data_dir(replica) / 'catalog.db'}?mode=ro", uri=True)) as db:
        return set(db.execute(sql, (name,)).fetchall())


def goes_on(local: LocalCluster, db: Database, until: int) -> None:
    """Write until every replica has a horizon of at least this CSN."""
    other = f"t{next(NUMBERS)}"
    db.create_table(other, SCHEMA)

    def reached() -> bool:
        db.insert(other, rows(1, 1))
        return min(horizons(local)) >= until

    eventually(reached, what=f"a horizon of {until}")


def test_a_table_is_again_as_it_was_and_no_byte_is_written(
    local: LocalCluster, one: Database, two: Database, table: str
) -> None:
    """All replicas show the rows of then; history goes on, and the change feed tells what has changed."""
    damage(one, table)
    before = one.insert(table, rows(3, 31), wait="all").csn
    places = {replica: files(local, replica, table) for replica in REPLICAS}
    assert before is not None
    done = two.restore_table(table, "then", wait="all")
    assert done.csn is not None
    assert (done.rows_inserted, done.rows_deleted) == (4, 5)
    for replica in REPLICAS:
        with local.connect(replica) as db:
            assert numbers(db, table) == [10, 11, 12, 20]
        assert files(local, replica, table) == places[replica], f"{replica} has written bytes"
    assert sorted(one.read(table, csn=before)["n"].to_pylist()) == [10, 12, 30, 31, 99]
    with one.changes(table, before, done.csn) as feed:
        changed = sorted((row["_change_type"], row["n"]) for row in feed.to_table().to_pylist())
    assert changed == [("delete", 30), ("delete", 31), ("delete", 99), ("insert", 11), ("insert", 20)]
    assert one.restore_table(table, "then").csn is None, "there is nothing left to restore"


def test_restored_rows_stay_when_all_else_is_collected(
    local: LocalCluster, one: Database, table: str
) -> None:
    """The parts that had the bytes first are collected everywhere; a part of now keeps the file."""
    damage(one, table)
    one.restore_table(table, "then", wait="all")
    goes_on(local, one, one.tag("then", move=True).csn)
    for replica in REPLICAS:
        with local.connect(replica) as db:
            assert numbers(db, table) == [10, 11, 12, 20]
    require_clean_audit(local, deep=True)


def test_one_partition_is_restored_alone(one: Database, table: str) -> None:
    """The other partitions stay as they are; a transaction may restore, change, and be rolled back."""
    damage(one, table)
    assert numbers(one, table) == [10, 12, 30, 99]
    with one.begin() as tx:
        found = tx.restore_table(table, "then", partition={"y": 2})
        assert (found.rows_restored, found.parts_restored, found.parts_removed) == (1, 1, 0)
        tx.insert(table, rows(2, 21))
        assert numbers(tx, table) == [10, 12, 20, 21, 30, 99]
        assert tx.restore_table(table, "then", partition={"y": 2}).parts_removed == 1
        assert numbers(tx, table) == [10, 12, 20, 30, 99]
        tx.rollback()
    assert numbers(one, table) == [10, 12, 30, 99]
    one.restore_table(table, "then", partition={"y": 3})
    one.restore_table(table, at=one.time_of(one.tags()[0].csn), partition={"y": 1})
    assert numbers(one, table) == [10, 11, 12]


def test_a_restore_conflicts_with_what_removes(one: Database, two: Database, table: str) -> None:
    """It locks like a removal of the table: the first one wins, the other one can be run again."""
    one.insert(table, rows(1, 99), wait="all")
    with one.begin() as tx, two.begin() as other:
        tx.restore_table(table, "then")
        with pytest.raises(SerializationConflictError):
            other.delete(table, "n = 10")
        other.rollback()
        tx.commit(wait="all")
    with two.begin() as tx, one.begin() as other:
        tx.delete(table, "n = 10")
        with pytest.raises(SerializationConflictError):
            other.restore_table(table, "then")
        other.rollback()
    assert tx.csn is not None
    assert numbers_at(one, table, tx.csn) == [11, 12, 20]


@pytest.mark.slow
def test_a_clone_gets_shared_bytes_once(local: LocalCluster, table: str) -> None:
    """A replica with an empty disk fetches the bytes of one part, and gives them to all that share them."""
    with local.connect("r1") as db:
        for _ in range(3):
            db.truncate(table)
            db.restore_table(table, "then", wait="all")
        expected = len(files(local, "r1", table))
        local.kill("r3")
        shutil.rmtree(local.data_dir("r3"))
        local.up(timeout_s=READY_TIMEOUT_S, replace_disks=["r3"])
        db.insert(table, rows(4, 40), wait="all")
    eventually(lambda: len(files(local, "r3", table)) == expected + 1, what="all parts at the clone")
    with local.connect("r3") as db:
        assert numbers(db, table) == [10, 11, 12, 20, 40]


def test_damaged_bytes_are_mended_for_all_parts_that_share_them(
    local: LocalCluster, one: Database, table: str
) -> None:
    """The part of then and that of now have one place; both are whole again after one of them was read."""
    one.truncate(table)
    one.restore_table(table, "then", wait="all")
    for file in {place[0] for place in files(local, "r2", table)}:
        path = local.data_dir("r2") / file
        data = bytearray(path.read_bytes())
        for offset in [place[1] for place in files(local, "r2", table) if place[0] == file]:
            data[offset + 40] ^= 255
        path.write_bytes(data)
    with local.connect("r2") as db:

        def whole() -> bool:
            try:
                return numbers(db, table) == sorted(db.read(table, csn="then")["n"].to_pylist())
            except TidelockError:
                return False

        eventually(whole, what="whole parts at r2")
        assert numbers(db, table) == [10, 11, 12, 20]
    require_clean_audit(local, deep=True)


def test_what_cannot_be_restored_is_refused_with_the_reason(
    local: LocalCluster, one: Database, table: str
) -> None:
    """Nothing is changed by a restore that is refused."""
    name = f"t{next(NUMBERS)}"
    with pytest.raises(UnknownTableError):
        one.restore_table(name, "then")
    one.create_table(name, SCHEMA, properties={"unique_key": "n"})
    early = one.insert(name, rows(1, 1)).csn
    with pytest.raises(UnsupportedInTransactionError, match="unique key"):
        one.restore_table(name, early)
    landing = f"t{next(NUMBERS)}"
    one.create_table(landing, SCHEMA, properties={"landing": "on"})
    with pytest.raises(TableModeError):
        one.restore_table(landing, early)
    plain = f"t{next(NUMBERS)}"
    one.create_table(plain, SCHEMA)
    with pytest.raises(UnknownTableError, match="did not exist at CSN"):
        one.restore_table(plain, "then")
    with pytest.raises(UnknownTagError):
        one.restore_table(table, "never")
    with pytest.raises(BadRequestError, match="a CSN, a tag or a time: give one of them"):
        one.restore_table(table)
    with pytest.raises(BadRequestError, match="a partition of table"):
        one.restore_table(table, "then", partition={"n": 1})
    old = one.insert(plain, rows(1, 1)).csn
    assert old is not None
    one.untag("then")
    goes_on(local, one, old + 1)
    with pytest.raises(SnapshotTooOldError):
        one.restore_table(plain, old)
    one.tag("then")
    assert numbers(one, table) == [10, 11, 12, 20]


def test_a_table_is_restored_on_the_command_line(local: LocalCluster, one: Database, table: str) -> None:
    """The whole table, or one partition, at a tag."""
    damage(one, table)

    def run(*args: str) -> dict[str, Any]:
        done = CliRunner().invoke(cli.app, ["restore", table, *args, "--json", "--url", local.url("r1")])
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.output)
        return found

    assert run("--to", "then", "--partition", "y=2")["rows"] == {"inserted": 1, "updated": 0, "deleted": 0}
    whole = run("--to", "then")
    assert numbers_at(one, table, whole["csn"]) == [10, 11, 12, 20]


def test_a_cloned_table_shares_files_and_nothing_else(
    local: LocalCluster, one: Database, two: Database, table: str
) -> None:
    """It has the rows of the other one at a tag or of now; what changes one does not change the other."""
    damage(one, table)
    places = {replica: files(local, replica, table) for replica in REPLICAS}
    early, late = f"copies.t{next(NUMBERS)}", f"t{next(NUMBERS)}"
    made = two.clone_table(table, early, csn="then")
    assert (made.name, made.rows, made.partition_by) == (early, 4, ["y"])
    with one.begin() as tx:
        tx.insert(table, rows(5, 50))
        assert tx.clone_table(table, late).rows == 5
        tx.delete(late, "n = 99")
        assert numbers(tx, late) == [10, 12, 30, 50]
        tx.commit(wait="all")
    for replica in REPLICAS:
        with local.connect(replica) as db:
            assert numbers(db, early) == [10, 11, 12, 20]
            assert numbers(db, late) == [10, 12, 30, 50]
            assert numbers(db, table) == [10, 12, 30, 50, 99]
        assert files(local, replica, early) <= places[replica], f"{replica} has written bytes"
    two.insert(early, rows(6, 60))
    one.drop_table(table)
    goes_on(local, one, one.tag("then", move=True).csn)
    for replica in REPLICAS:
        with local.connect(replica) as db:
            assert numbers(db, early) == [10, 11, 12, 20, 60]
            assert numbers(db, late) == [10, 12, 30, 50]
    require_clean_audit(local, deep=True)


def test_a_clone_that_cannot_be_made_leaves_nothing(one: Database, table: str) -> None:
    """The name is taken, there is no such table, or there was none then; the transaction goes on."""
    with pytest.raises(TableExistsError):
        one.clone_table(table, table)
    with pytest.raises(UnknownTableError):
        one.clone_table("nowhere", "copy")
    with pytest.raises(UnknownTagError):
        one.clone_table(table, "copy", csn="never")
    later = f"t{next(NUMBERS)}"
    one.create_table(later, SCHEMA)
    with one.begin() as tx:
        with pytest.raises(UnknownTableError):
            tx.clone_table(later, "copy", csn="then")
        with pytest.raises(BadRequestError, match="give one of them"):
            tx.clone_table(table, "copy", csn="then", at=5)
        tx.insert(later, rows(1, 1))
        tx.commit()
    assert numbers(one, later) == [1]
    with pytest.raises(UnknownTableError):
        one.table("copy")


def test_a_table_is_cloned_on_the_command_line(local: LocalCluster, one: Database, table: str) -> None:
    """By the names of both tables, at a tag."""
    copy = f"t{next(NUMBERS)}"
    one.truncate(table)
    args = ["clone-table", table, copy, "--csn", "then", "--json", "--url", local.url("r1")]
    done = CliRunner().invoke(cli.app, args)
    assert done.exit_code == 0, done.output
    made = json.loads(done.output)
    assert made["rows"] == 4
    assert numbers_at(one, copy, made["csn"]) == [10, 11, 12, 20]
