"""Tables that are created, changed and dropped: each reader sees those of its CSN, whichever way it reads.

A model keeps the names, properties and rows of all tables at each CSN. What clients, SQL, the folders of
snapshots and the change feed show at past CSNs, on every replica, is compared with it.
"""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.support.clusters.agreeing import agreeing
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.shown_tables import files_of, of_files, tables_of_folders
from tests.support.replicas.readers import send
from tests.support.waiting import eventually
from tidelock.cli import app as cli
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    NotCommittedError,
    RefusedError,
    TableExistsError,
    TidelockError,
    UnavailableError,
    UnknownTableError,
)

REPLICAS = 3
COLUMNS = {"k": "bigint not null"}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas, which agree at the end, with nothing left over."""
    yield from agreeing(module_cluster(replicas=REPLICAS, settings=QUICK))


def rows(*numbers: int) -> pa.Table:
    """Return rows."""
    return pa.table({"k": pa.array(numbers, pa.int64())})


def why(tx: Transaction) -> str:
    """Return why a transaction takes no statement, or an empty text."""
    try:
        tx.sql("select 1")
    except TidelockError as error:
        return error.message
    return ""


def shown(db: Database, csn: int) -> dict[str, list[int]]:
    """Return the rows of every table at a CSN, as a client, as SQL and as the folders show them."""
    found: dict[str, list[int]] = {}
    with db.snapshot(csn=csn) as snapshot:
        address = urlsplit(snapshot.root).netloc
        for row in snapshot.tables():
            name = row["name"]
            found[name] = sorted(snapshot.read(name)["k"].to_pylist())
            quoted = ".".join(f'"{word}"' for word in name.split("."))
            assert sorted(snapshot.sql(f"select k from {quoted}")["k"].to_pylist()) == found[name]
            assert row["rows"] == len(found[name])
            files = snapshot.parts(name)
            assert sum(part["rows"] for part in files) == len(found[name])
            assert all(part["file"].startswith(f"{name.replace('.', '/')}/") for part in files)
            read = [key for _, file in of_files(address, csn, name) for key in file["k"].to_pylist()]
            assert sorted(read) == found[name]
        assert tables_of_folders(address, csn) == sorted(found)
    return found


def test_a_reader_of_an_earlier_csn_sees_the_tables_of_that_csn(dbs: list[Database]) -> None:
    """Created, renamed, dropped and created again: names, rows and definitions, on every replica."""
    db = dbs[0]
    at: dict[int, dict[str, list[int]]] = {}
    created = db.create_table("a", COLUMNS)["csn"]
    at[created] = {"default.a": []}
    at[db.insert("a", rows(1, 2)).csn or 0] = {"default.a": [1, 2]}
    renamed = db.rename_table("a", "sales.b")
    assert (renamed["name"], renamed["version"]) == ("sales.b", 1)
    at[renamed["csn"]] = {"sales.b": [1, 2]}
    at[db.insert("sales.b", rows(3)).csn or 0] = {"sales.b": [1, 2, 3]}
    again = db.create_table("a", COLUMNS)["csn"]
    at[again] = {"default.a": [], "sales.b": [1, 2, 3]}
    at[db.insert("a", rows(9)).csn or 0] = {"default.a": [9], "sales.b": [1, 2, 3]}
    dropped = db.drop_table("sales.b")
    assert dropped is not None
    at[dropped] = {"default.a": [9]}
    at[db.create_table("sales.b", COLUMNS)["csn"]] = {"default.a": [9], "sales.b": []}
    for other in dbs:
        for csn, expected in at.items():
            assert shown(other, csn) == expected
        assert other.table("a", csn=created)["name"] == "default.a"
        with pytest.raises(UnknownTableError, match=r"no table default\.a at CSN"):
            other.table("a", csn=renamed["csn"])
        with pytest.raises(UnknownTableError):
            other.read("sales.b", csn=dropped)


def test_a_replaced_table_has_no_row_of_the_former_one(dbs: list[Database]) -> None:
    """There is no CSN without a table, and none with both."""
    db = dbs[0]
    db.create_table("a", COLUMNS)
    before = db.insert("a", rows(1)).csn or 0
    after = db.create_table("a", {"x": "string"}, or_replace=True)["csn"]
    for other in dbs:
        assert other.read("a", csn=before).to_pydict() == {"k": [1]}
        assert other.read("a", csn=after - 1).to_pydict() == {"k": [1]}
        assert other.read("a", csn=after).to_pydict() == {"x": []}
        assert [row["name"] for row in other.tables(csn=after)] == ["default.a"]


def test_plain_programs_read_an_earlier_csn_in_its_folders(dbs: list[Database], tmp_path: Path) -> None:
    """The files of then, after a rename, a move, a replacement and a drop, by pyarrow and by DuckDB."""
    db = dbs[0]
    for name in ("renamed", "moved", "replaced", "dropped"):
        db.create_table(name, COLUMNS)
        db.insert(name, rows(1, 2))
    db.delete("dropped", "k = 1")
    before = db.insert("replaced", rows(3)).csn or 0
    then = {"default.renamed": [1, 2], "default.moved": [1, 2], "default.replaced": [1, 2, 3]}
    then |= {"default.dropped": [2]}
    db.rename_table("renamed", "other")
    db.rename_table("moved", "sales.moved")
    db.create_table("replaced", {"x": "string"}, or_replace=True)
    db.insert("replaced", pa.table({"x": ["new"]}))
    after = db.drop_table("dropped") or 0
    for number, other in enumerate(dbs):
        assert shown(other, before) == then
        with other.snapshot(csn=before) as snapshot:
            address = urlsplit(snapshot.root).netloc
            for name, expected in then.items():
                folder = tmp_path / str(number) / name
                folder.mkdir(parents=True)
                for index, (_, file) in enumerate(files_of(address, before, name)):
                    (folder / f"{index}.parquet").write_bytes(file)
                found = duckdb.connect().execute(
                    f"select k from read_parquet('{folder}/*.parquet') order by k"
                )
                assert [key for (key,) in found.fetchall()] == expected
            for gone in ("default/other", "sales/moved"):
                path = f"/webhdfs/v1/snapshots/{before}/{gone}?op=LISTSTATUS"
                assert send(address, "GET", path).status == 404
        with other.snapshot(csn=after) as snapshot:
            address = urlsplit(snapshot.root).netloc
            assert tables_of_folders(address, after) == ["default.other", "default.replaced", "sales.moved"]
            [(_, new)] = of_files(address, after, "replaced")
            assert new.to_pydict() == {"x": ["new"]}
            path = f"/webhdfs/v1/snapshots/{after}/default/dropped?op=LISTSTATUS"
            assert send(address, "GET", path).status == 404


def test_the_command_line_explains_a_part_at_each_csn(local: LocalCluster, dbs: list[Database]) -> None:
    """Not there before its commit, visible until it is removed, and why; also after its table is dropped."""
    db = dbs[0]
    db.create_table("a", COLUMNS)
    added = db.insert("a", rows(1, 2))
    [part] = db.parts("a")
    removed = db.delete("a", "k > 0", wait="all")
    assert added.csn is not None
    assert removed.csn is not None
    dropped = db.drop_table("a") or 0
    for other in dbs:
        other.snapshot(min_csn=dropped).close()

    def run(*args: str, replica: str = "r2", code: int = 0) -> str:
        done = CliRunner().invoke(cli.app, ["explain", *args, "--url", local.url(replica)])
        assert done.exit_code == code, done.output
        return done.output

    for csn, visible, why in (
        (added.csn - 1, False, f"it was added at CSN {added.csn}, above {added.csn - 1}"),
        (added.csn, True, f"it was added at CSN {added.csn}, not above {added.csn}"),
        (removed.csn - 1, True, f"it is removed at {removed.csn}"),
        (removed.csn, False, f"{removed.tid} removed it at CSN {removed.csn}, not above {removed.csn}"),
        (dropped, False, f"{removed.tid} removed it at CSN {removed.csn}, not above {dropped}"),
    ):
        for replica in local.replicas:
            told = json.loads(run(part.part, "--at", str(csn), "--json", replica=replica))
            assert (told["part"], told["csn"], told["visible"], told["rows"]) == (part.part, csn, visible, 2)
            assert why in told["why"]
            assert told["asked"] == replica
            assert (told["added_tid"], told["removed_csn"]) == (added.tid, removed.csn)
        printed = " ".join(run(part.part, "--at", str(csn)).split())
        assert f"visible: {visible}" in printed
        assert why in printed
    assert json.loads(run(part.part, "--json"))["csn"] >= dropped
    assert "1000000" in run(part.part, "--at", "1000000", code=1)
    assert "does not know it" in json.loads(run("r1-1-99999", "--at", str(added.csn), "--json"))["why"]


def test_properties_are_those_of_their_csn(dbs: list[Database]) -> None:
    """A comment of any text comes and goes; a wrong value is refused, and nothing changes."""
    db = dbs[0]
    db.create_table("a", COLUMNS, properties={"comment": "first"})
    text = "größe, \"price\"; -- and\n'so on' \U0001f40b"
    changed = db.alter_table("a", {"comment": text, "compaction": "off"})
    bare = db.alter_table("a", {"comment": None})
    for other in dbs:
        found = [other.table("a", csn=csn)["properties"] for csn in (changed["csn"] - 1, changed["csn"])]
        assert found == [{"comment": "first"}, {"comment": text, "compaction": "off"}]
        assert other.table("a", csn=bare["csn"])["properties"] == {"compaction": "off"}
    for wrong in ({"compaction": "maybe"}, {"retention_s": "-1"}, {"unique_key": "k"}, {"no": "x"}, {}):
        with pytest.raises(BadRequestError):
            db.alter_table("a", wrong)
    assert db.table("a")["version"] == 2


def test_a_dropped_table_ends_the_transactions_that_use_it(dbs: list[Database]) -> None:
    """On every home, with the reason; others go on, and a snapshot of before reads on."""
    db = dbs[0]
    db.create_table("a", COLUMNS)
    db.create_table("b", COLUMNS)
    db.insert("a", rows(1), wait="all")
    using = [other.begin(fresh=True) for other in dbs]
    for tx in using:
        tx.insert("a", rows(2))
        assert tx.sql("select count(*) as n from a")["n"].to_pylist() == [2]
    beside = dbs[1].begin(fresh=True)
    beside.insert("b", rows(5))
    with dbs[2].snapshot() as before:
        csn = db.drop_table("a")
        for tx in using:
            eventually(lambda tx=tx: f"default.a, which {tx.tid} uses, was dropped at CSN {csn}" in why(tx))  # type: ignore[misc]
            with pytest.raises(RefusedError):
                tx.commit()
            tx.rollback()
        assert before.read("a")["k"].to_pylist() == [1]
    assert db.read("b", csn=beside.commit().csn)["k"].to_pylist() == [5]


def test_a_commit_that_meets_a_change_is_refused(dbs: list[Database]) -> None:
    """Rows for the definition of before never join a table that was renamed, changed or dropped since."""
    db = dbs[0]
    for change in (
        lambda: db.rename_table("a", "b"),
        lambda: db.alter_table("b", {"comment": "new"}),
        lambda: db.drop_table("b"),
    ):
        name = "b" if db.tables() else "a"
        if name == "a":
            db.create_table("a", COLUMNS)
        tx = dbs[1].begin(fresh=True)
        tx.insert(name, rows(1))
        change()
        with pytest.raises(RefusedError):
            tx.commit()
        tx.rollback()
    assert db.tables() == []


@pytest.mark.parametrize("what", ["create", "drop", "rename"])
@pytest.mark.few(1)
def test_of_two_changes_at_once_one_wins(dbs: list[Database], what: str) -> None:
    """Twenty times at three homes at once; the others are told why theirs cannot be made."""
    for number in range(20):
        if what != "create":
            dbs[0].create_table(f"t{number}", COLUMNS)
            for db in dbs:
                db.snapshot(min_csn=dbs[0].seen_csn).close()
        ends: list[object] = [None] * len(dbs)

        def change(index: int, number: int = number, ends: list[object] = ends) -> None:
            db = dbs[index]
            try:
                if what == "create":
                    ends[index] = db.create_table(f"t{number}", COLUMNS)["csn"]
                elif what == "drop":
                    ends[index] = db.drop_table(f"t{number}")
                else:
                    ends[index] = db.rename_table(f"t{number}", f"u{number}_{index}")["csn"]
            except TidelockError as error:
                ends[index] = error

        threads = [threading.Thread(target=change, args=(index,)) for index in range(len(dbs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        won = [end for end in ends if isinstance(end, int)]
        lost = [type(end) for end in ends if not isinstance(end, int)]
        assert len(won) == 1, ends
        assert lost == [TableExistsError if what == "create" else UnknownTableError] * 2, ends
        with dbs[0].snapshot(min_csn=won[0]) as newest:
            there = [row["name"] for row in newest.tables()]
        assert len(there) == (0 if what == "drop" else number + 1)


def test_changes_of_different_tables_do_not_disturb_each_other(dbs: list[Database]) -> None:
    """All of thirty, made at three homes at once."""
    errors: list[TidelockError] = []

    def make(index: int) -> None:
        for number in range(10):
            try:
                dbs[index].create_table(f"t{index}_{number}", COLUMNS)
            except TidelockError as error:
                errors.append(error)

    threads = [threading.Thread(target=make, args=(index,)) for index in range(len(dbs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    newest = max(db.seen_csn for db in dbs)
    for db in dbs:
        assert len(db.tables(csn=newest)) == 30


def test_a_feed_ends_with_its_table(dbs: list[Database]) -> None:
    """The rows of a dropped table are deletes; the next table of that name is not mistaken for it."""
    db = dbs[0]
    db.create_table("a", COLUMNS)
    first = db.insert("a", rows(1, 2)).csn or 0
    dropped = db.drop_table("a") or 0
    with pytest.raises(UnknownTableError):
        db.changes("a", from_csn=first - 1, to_csn=dropped).to_table()
    found = db.changes("a", from_csn=first - 1, to_csn=dropped - 1).to_table()
    assert sorted(found["k"].to_pylist()) == [1, 2]
    made = db.create_table("a", COLUMNS)["csn"]
    last = db.insert("a", rows(7)).csn or 0
    for since in (first - 1, first):
        with pytest.raises(UnknownTableError, match="was dropped or got another name"):
            db.changes("a", from_csn=since, to_csn=last).to_table()
    assert db.changes("a", from_csn=made, to_csn=last).to_table()["k"].to_pylist() == [7]


def test_a_derived_table_follows_a_source_that_is_renamed(dbs: list[Database]) -> None:
    """It is dropped before its source, and then the source goes on alone."""
    db = dbs[0]
    db.create_table("a", COLUMNS)
    db.create_table("d", COLUMNS, derived_from="a", derived_sql="select k * 10 as k from inserted")
    db.rename_table("a", "b")
    db.rename_table("d", "e")
    db.insert("b", rows(1), wait="all")
    for other in dbs:
        assert other.read("e", csn=db.seen_csn)["k"].to_pylist() == [10]
        assert other.table("e", csn=db.seen_csn)["derived_from"] == "default.b"
        assert other.table("b", csn=db.seen_csn)["dependents"] == ["default.e"]
    with pytest.raises(BadRequestError, match=r"default\.e; drop these first"):
        db.drop_table("b")
    db.drop_table("e")
    db.insert("b", rows(2))
    assert sorted(db.read("b")["k"].to_pylist()) == [1, 2]


def test_rows_that_have_landed_go_with_their_table(dbs: list[Database]) -> None:
    """And the home goes on with the other landing tables."""
    db = dbs[0]
    for name in ("a", "b"):
        db.create_table(name, COLUMNS, properties={"landing": "on"})
    for number in range(30):
        for name in ("a", "b"):
            db.land(name, rows(number))
        if number == 15:
            db.drop_table("a")
            db.create_table("a", COLUMNS, properties={"landing": "on"})
    eventually(lambda: sorted(db.read("b")["k"].to_pylist()) == list(range(30)))
    eventually(lambda: set(db.read("a")["k"].to_pylist()) >= set(range(16, 30)))
    assert not set(db.read("a")["k"].to_pylist()) & set(range(15))


@pytest.mark.scenario("S05")
def test_random_changes_with_kills_are_those_of_the_model(
    local: LocalCluster, dbs: list[Database], fresh_seed: int
) -> None:
    """At drawn CSNs every replica shows what the model has, also after its process was killed."""
    drawn = random.Random(fresh_seed)
    now: Shown = {}
    at: dict[int, Shown] = {}
    down: str | None = None
    for number in range(60):
        if number % 15 == 10:
            down = drawn.choice(local.replicas)
            local.kill(down, signal.SIGKILL)
        elif down is not None and number % 15 == 14:
            local.start(down)
            down = None
        alive = [db for db, replica in zip(dbs, local.replicas, strict=True) if replica != down]
        now = _step(drawn.choice(alive), alive[0], _drawn_change(drawn, now, number), now, at)
    if down is not None:
        local.start(down)
    for db in dbs:
        for csn in drawn.sample(sorted(at), 12):
            eventually(lambda db=db, csn=csn: shown(db, csn) == at[csn])  # type: ignore[misc]


Shown = dict[str, list[int]]
#: A call, and the tables after it; None: it has to be refused.
Change = tuple[Callable[[Database], int], Shown | None]


def _drawn_change(drawn: random.Random, now: Shown, number: int) -> Change:
    """Return a drawn change of the tables as they are now."""
    name = drawn.choice([*now, "absent"])
    what = drawn.choice(("create", "insert", "insert", "insert", "rename", "drop", "comment"))
    new = f"{drawn.choice(('default', 'other'))}.n{drawn.randrange(4)}"
    if what == "create":
        after = None if new in now else {**now, new: []}
        return lambda db: int(db.create_table(new, COLUMNS)["csn"]), after
    if name not in now:
        return lambda db: db.drop_table(name) or 0, None
    rest = {other: rows for other, rows in now.items() if other != name}
    if what == "insert":
        some = sorted(drawn.sample(sorted(now), drawn.randint(1, len(now))))
        after = {other: sorted([*have, number]) if other in some else have for other, have in now.items()}
        return lambda db: _inserted(db, some, number), after
    if what == "rename":
        return lambda db: int(db.rename_table(name, new)["csn"]), None if new in now else {
            **rest,
            new: now[name],
        }
    if what == "drop":
        return lambda db: db.drop_table(name) or 0, rest
    return lambda db: int(db.alter_table(name, {"comment": f"change {number}"})["csn"]), now


def _inserted(db: Database, tables: list[str], number: int) -> int:
    with db.begin(fresh=True) as tx:
        for table in tables:
            tx.insert(table, rows(number))
    return tx.csn or 0


def _step(db: Database, asked: Database, change: Change, now: Shown, at: dict[int, Shown]) -> Shown:
    """Make a change; return the tables after it, which are noted at their CSN."""
    call, after = change
    try:
        csn = call(db)
    except (NotCommittedError, UnavailableError, CommitUnknownError):  # a replica is down
        with asked.begin(fresh=True) as tx:
            csn = tx.snapshot_csn
        found = shown(asked, csn)
        assert found in (now, after), "a change is made as a whole, or not at all"
        after = found
    except RefusedError:
        assert after is None, "a change that can be made is made"
        return now
    assert after is not None, "a change that cannot be made is refused"
    at[csn] = after
    return after
