"""System tables of a cluster agree with what was committed, on every replica and at every CSN."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.project import pages
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import BadRequestError, UnknownTableError

NUMBERS = itertools.count(1)
ROWS = pa.table({"k": [1, 2, 3], "day": ["a", "a", "b"], "n": [10, 20, 30]})
REPLICAS = ("r1", "r2", "r3")


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Three replicas with a secret of their own."""
    return module_cluster(replicas=3, settings=QUICK)


@pytest.fixture(scope="module")
def db(local: LocalCluster) -> Iterator[Database]:
    """A client of r1."""
    with local.connect("r1") as found:
        yield found


@pytest.fixture
def table(db: Database) -> str:
    """A table of three rows in two partitions."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, ROWS, partition_by=["day"], properties={"compaction": "off"})
    db.insert(name, ROWS, wait="all")
    return name


def one(db: Database, sql: str, *params: Any, **more: Any) -> dict[str, Any]:
    """Return the only row of a query."""
    (row,) = db.sql(sql, params, **more).to_pylist()
    return dict(row)


def test_a_table_of_users_joins_with_the_system(db: Database, table: str) -> None:
    """Counts of the catalog and of the rows agree in one query."""
    sql = f"""
        select p.rows = count(*) as agree
        from system.partitions p join {table} t on p.partition = 'day=' || t.day
        where p.table_name = '{table}' group by p.partition, p.rows
    """
    assert db.sql(sql).to_pylist() == [{"agree": True}] * 2


def test_tables_are_read_by_name_and_scanned(db: Database, table: str) -> None:
    """`read`, `scan` and their conditions take a system table in place of a table."""
    read = db.read("system.parts", ["partition", "rows"], "table_name = ?", [table])
    assert sorted(map(str, read.to_pylist())) == sorted(
        map(str, [{"partition": "day=a", "rows": 2}, {"partition": "day=b", "rows": 1}])
    )
    assert db.scan("system.parts", where="table_name = ?", params=[table]).count() == 2


def test_the_system_cannot_be_written(db: Database) -> None:
    """No table can be created in its namespace, and its tables take no rows."""
    with pytest.raises(BadRequestError, match="namespace system is reserved"):
        db.create_table("system.mine", ROWS)
    with pytest.raises(BadRequestError, match="namespace system is reserved"):
        db.insert("system.parts", ROWS)
    with pytest.raises(UnknownTableError, match="the system tables are tables, columns"):
        db.sql("select * from system.nothing")


def test_a_transaction_sees_its_own_parts_and_itself(db: Database, table: str) -> None:
    """Inside a transaction its parts are shown, it is open, and INSERT INTO ... SELECT takes the rows."""
    db.create_table(f"{table}_parts", {"part": "string", "rows": "bigint"})
    with db.begin() as tx:
        tx.insert(table, pa.table({"k": [9], "day": ["c"], "n": [1]}))
        counted = tx.sql("select partition, added_csn from system.parts where table_name = ?", [table])
        assert {"partition": "day=c", "added_csn": None} in counted.to_pylist()
        (state,) = tx.sql("select state from system.transactions where tid = ?", [tx.tid]).to_pylist()
        assert state == {"state": "open"}
        tx.sql(
            f"insert into {table}_parts "
            "select part, rows from system.parts where table_name = ? and rows > 1",
            [table],
        )
    assert db.read(f"{table}_parts", ["rows"]).to_pylist() == [{"rows": 2}]
    assert one(db, "select state, csn from system.transactions where tid = ?", tx.tid) == {
        "state": "committed",
        "csn": tx.csn,
    }


def test_what_only_the_agent_knows_is_shown(local: LocalCluster, db: Database, table: str) -> None:
    """Log, pins, locks, replicas and settings are those of the cluster now."""
    done = db.delete(table, "k = 1")
    log = one(db, "select home, tables, rows_added, parts_removed from system.log where csn = ?", done.csn)
    assert log == {"home": "r1", "tables": [f"default.{table}"], "rows_added": 1, "parts_removed": 1}
    with db.snapshot() as snap:
        pins = db.sql("select csn, replica from system.pins").to_pylist()
        assert {"csn": snap.csn, "replica": "r1"} in pins
    with db.begin() as tx:
        tx.delete(table, "k = 2")
        held = one(db, "select kind, home from system.locks where tid = ?", tx.tid)
        assert held == {"kind": "part", "home": "r1"}
    replicas = db.sql("select replica, alive, snapshot_csn from system.replicas order by 1").to_pylist()
    assert [(row["replica"], row["alive"]) for row in replicas] == [(name, True) for name in REPLICAS]
    found = db.sql("select name, value, is_secret from system.settings").to_pylist()
    assert {"name": "replica", "value": "r1", "is_secret": False} in found
    assert {"name": "secret", "value": None, "is_secret": True} in found


def test_the_history_says_who_changed_what_when(db: Database, table: str) -> None:
    """Each commit has a row for each table that it changed, with its label and the user's own data."""
    with db.begin(f"load of {table}", meta={"user": "ann"}) as tx:
        tx.insert(table, pa.table({"k": [9], "day": ["c"], "n": [1]}))
        tx.delete(table, "day = 'b'")
    db.rename_table(table, f"{table}_old")
    sql = """
        select h.action, rows_added, rows_removed, h.label, meta, h.home, h.time = t.time as at_the_time
        from system.history h left join system.transactions t using (tid)
        where h.table_id = ? order by h.csn
    """
    found = [tuple(row.values()) for row in db.sql(sql, [f"default.{table}"]).to_pylist()]
    assert [row[0] for row in found] == ["create", "insert", "change", "alter"]
    assert found[1][1:3] == (3, 0)
    assert found[2] == ("change", 1, 1, f"load of {table}", '{"user": "ann"}', "r1", True)


class Model:
    """The tables as the commits have left them: rows by partition at every CSN."""

    def __init__(self) -> None:
        self.at: dict[int, dict[str, dict[str, int]]] = {}
        self._now: dict[str, dict[str, int]] = {}

    def committed(self, csn: int | None, table: str, changes: dict[str, int]) -> None:
        """Note the changed numbers of rows of a commit; a partition without rows has no part."""
        assert csn is not None, "the commit has changed something"
        partitions = dict(self._now.get(table, {}))
        for path, change in changes.items():
            partitions[path] = partitions.get(path, 0) + change
        self._now = {**self._now, table: {path: rows for path, rows in partitions.items() if rows}}
        self.at[csn] = self._now

    def dropped(self, csn: int | None, table: str) -> None:
        """Note the drop of a table."""
        assert csn is not None, "the table was there"
        self._now = {name: partitions for name, partitions in self._now.items() if name != table}
        self.at[csn] = self._now


def run(db: Database, names: list[str], draw: random.Random) -> Model:
    """Commit a random history of inserts, deletes, dropped partitions, drops and creations."""
    model = Model()
    rows: dict[str, dict[str, set[int]]] = {}
    keys = itertools.count()

    def create(name: str) -> None:
        made = db.create_table(name, ROWS, partition_by=["day"])
        model.committed(made.get("csn"), name, {})
        rows[name] = {}

    for name in names:
        create(name)
    for _ in range(30):
        name, day = draw.choice(names), draw.choice("abc")
        have = rows[name].setdefault(day, set())
        action = draw.choice(["insert", "insert", "insert", "delete", "partition", "drop"])
        if action == "insert":
            new = [next(keys) for _ in range(draw.randint(1, 5))]
            done = db.insert(name, pa.table({"k": new, "day": [day] * len(new), "n": new}))
            have.update(new)
            model.committed(done.csn, name, {f"day={day}": len(new)})
        elif action == "drop" and draw.random() < 0.3:
            model.dropped(db.drop_table(name), name)
            create(name)
        elif have:
            gone = (
                have if action == "partition" else set(draw.sample(sorted(have), draw.randint(1, len(have))))
            )
            done = db.delete(name, f"k in ({', '.join(map(str, gone))})")
            model.committed(done.csn, name, {f"day={day}": -len(gone)})
            rows[name][day] = have - gone
    return model


def test_counts_agree_with_what_was_committed_at_every_csn(
    local: LocalCluster, db: Database, fresh_seed: int
) -> None:
    """Tables, partitions and parts have the rows of a model at all CSNs of a random history, everywhere."""
    names = [f"m{next(NUMBERS)}" for _ in range(3)]
    model = run(db, names, random.Random(fresh_seed))
    clients = itertools.cycle([local.connect(replica) for replica in REPLICAS])
    draw = random.Random(fresh_seed + 1)
    chosen = sorted({*draw.sample(sorted(model.at), 9), max(model.at)})
    for csn, other in zip(chosen, clients, strict=False):
        found = {table: counted(other, table, csn) for table in names if exists(other, table, csn)}
        assert found == model.at[csn], csn


def exists(db: Database, table: str, csn: int) -> bool:
    """Return whether a table exists at a CSN; its sums must be those of its parts."""
    sql = """
        select t.parts = count(p.part) as parts, t.rows = coalesce(sum(p.rows), 0) as rows
        from system.tables t left join system.parts p using (namespace, table_name)
        where table_name = ? group by t.parts, t.rows
    """
    found = db.sql(sql, [table], csn=csn).to_pylist()
    assert found in ([], [{"parts": True, "rows": True}])
    return bool(found)


def counted(db: Database, table: str, csn: int) -> dict[str, int]:
    """Return the rows of each partition at a CSN, as the catalog and as the rows themselves count them."""
    sql = "select partition, rows from system.partitions where table_name = ?"
    by_parts = {row["partition"]: row["rows"] for row in db.sql(sql, [table], csn=csn).to_pylist()}
    by_rows = db.sql(f"select 'day=' || day as d, count(*) as n from {table} group by 1", csn=csn)
    assert by_parts == {row["d"]: row["n"] for row in by_rows.to_pylist()}
    changed = "select sum(rows_added) - sum(rows_removed) as n from system.history where table_name = ?"
    assert one(db, changed, table, csn=csn) == {"n": sum(by_parts.values())}
    return by_parts


def test_statistics_are_those_of_now_or_of_a_tag(local: LocalCluster, db: Database, table: str) -> None:
    """A session that has seen little is told what its replica has; a tag is taken wherever a CSN is."""
    part = next(one.part for one in db.parts(table) if one.path == "day=b")
    tag = f"of-{table}"
    with local.connect("r1") as early:
        eventually(lambda: early.read(table).num_rows == 3, what="the rows")
        db.tag(tag, db.seen_csn)
        db.delete(table, "day = 'b'")
        assert early.statistics(table).rows == 2
        assert early.statistics(table, csn=tag).rows == 3
        assert early.explain_part(part, csn=tag).visible
        assert not early.explain_part(part).visible
    db.untag(tag)


def test_statistics_and_history_are_typed_answers(local: LocalCluster, db: Database, table: str) -> None:
    """A planner gets sizes, bounds and estimates of a table; the history of it reads like all results."""
    with local.connect("r2") as other:
        known = other.statistics(table, csn=db.seen_csn, distinct=True)
    assert (known.rows, known.parts, known.csn) == (3, 2, db.seen_csn)
    assert [(one.name, one.min, one.max, one.nulls, one.distinct) for one in known.columns] == [
        ("k", "1", "3", 0, 3), ("day", "a", "b", 0, 2), ("n", "10", "30", 0, 3),
    ]  # fmt: skip
    assert [one.distinct for one in db.statistics(table).columns] == [None] * 3
    created, inserted = db.history(table)
    assert (created.action, inserted.action, inserted.rows_added) == ("create", "insert", 3)
    assert inserted.time == db.time_of(inserted.csn)
    assert db.history(table, from_csn=inserted.csn, limit=1) == [inserted]
    with pytest.raises(UnknownTableError):
        db.statistics("no.such")


def test_a_part_and_a_transaction_tell_their_story(local: LocalCluster, db: Database, table: str) -> None:
    """Any replica says why a part is visible or not, and what became of a transaction."""
    part = next(one.part for one in db.parts(table) if one.path == "day=b")
    before = db.seen_csn
    with db.begin(f"story of {table}") as tx:
        tx.delete(table, "day = 'b'")
    with local.connect("r3") as other:
        gone = other.explain_part(part, csn=tx.csn)  # first: it waits until the replica knows the removal
        seen = other.explain_part(part, csn=before)
        assert (seen.visible, seen.why) == (
            True, f"it was added at CSN {seen.added_csn}, not above {before}, and it is removed at {tx.csn}",
        )  # fmt: skip
        assert (gone.visible, gone.why) == (False, f"{tx.tid} removed it at CSN {tx.csn}, not above {tx.csn}")
    story = db.explain(tx.tid)
    assert (story.label, story.csn, story.time) == (f"story of {table}", tx.csn, db.time_of(story.csn or 0))
    assert [(one.table, one.action, one.rows_removed) for one in story.changes] == [
        (f"default.{table}", "delete", 1)
    ]
    assert "r1" in story.holders
    assert "r1" in story.applied


@pytest.fixture(scope="module")
def page(db: Database, local: LocalCluster) -> dict[str, Any]:
    """The names that the Python of docs/system-tables.md starts with."""
    return {"url": local.url("r1")}


def test_the_page_of_system_tables_runs(page: dict[str, Any]) -> None:
    """The Python of docs/system-tables.md does what it shows."""
    pages.run("docs/system-tables.md", page)
    assert page["known"].rows == 3
