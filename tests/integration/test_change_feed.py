"""The change feed over HTTP and through the client: change sets, changed rows, limits, history."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import msgspec
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.project import pages
from tests.support.waiting import eventually
from tidelock.cli import app as cli
from tidelock.client import Database, Rows
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    LabelExistsError,
    NoSuchCsnError,
    SerializationConflictError,
    SnapshotTooOldError,
    UnknownTableError,
)
from tidelock.wire.changes import ChangedRowsRequest

SCHEMA = pa.schema([pa.field("p", pa.date32()), pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
NUMBERS = itertools.count(1)
DAY = "2026-11-21"
#: The largest number of parts in one answer of this cluster.
FILES_MAX = 4


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One replica for the module."""
    return module_cluster(
        replicas=1,
        settings={
            **QUICK,
            "sql_workers": 1,
            "horizon_interval_s": 0.2,
            "changes_files_max": FILES_MAX,
        },
    )


def rows(*keys: int, v: int = 0) -> pa.Table:
    """Rows with these keys."""
    day = pa.array([DAY] * len(keys)).cast(pa.date32())
    return pa.table({"p": day, "k": keys, "v": [v] * len(keys)}, SCHEMA)


@pytest.fixture
def table(db: Database) -> str:
    """An empty table."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, SCHEMA, partition_by=["p"], properties={"compaction": "off"})
    return name


def csn_of(found: int | None) -> int:
    """The CSN of a commit that changed something."""
    assert found is not None
    return found


def test_change_sets_tell_each_commit_and_its_parts(db: Database, table: str, local: LocalCluster) -> None:
    """Each commit in its order, with its parts, at paths that can be read."""
    start = db.seen_csn
    first = csn_of(db.insert(table, rows(1, 2)).csn)
    result = db.insert(table, rows(3))
    last = csn_of(db.delete(table, "k = 2").csn)
    feed = db.changes(table, start)
    sets = list(feed.sets())
    assert feed.to_csn == last
    assert [(one.csn, sum(p.rows for p in one.added), sum(p.rows for p in one.removed)) for one in sets] == [
        (first, 2, 0),
        (result.csn, 1, 0),
        (last, 1, 2),
    ]
    assert (sets[1].tids, sets[1].time) == ((result.tid,), result.time)
    assert sets[1].added[0].tid == result.tid
    [removed], [added] = sets[2].removed, sets[0].added
    assert removed.part == added.part
    assert removed.partition == {"p": DAY}
    for part in (part for one in sets for part in (*one.added, *one.removed)):
        answer = outside(local, part.path)
        assert len(answer) == part.length
    assert list(db.changes(table, last).sets()) == []
    one_by_one = db.changes(table, first, last).sets(files_max=1)
    assert [one.csn for one in one_by_one] == [result.csn, last]


def test_waiting_for_a_commit(db: Database, table: str) -> None:
    """A client that follows a table gets an answer after a commit, or an empty one after its timeout."""
    now = csn_of(db.insert(table, rows(1)).csn)
    feed = db.changes(table, now)
    nothing = feed.page(wait_s=0.01)
    assert (nothing.to, nothing.complete, nothing.sets) == (now, True, ())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(feed.page, wait_s=2.0)
        added = csn_of(db.insert(table, rows(2)).csn)
        assert [one.csn for one in waiting.result().sets] == [added]


def outside(local: LocalCluster, path: str) -> bytes:
    """Read a file of the snapshot file system as any program does."""
    with local.connect("r1") as db:
        [replica] = db.status()["replicas"]
    with urlopen(f"http://{replica['data']}{quote(path)}") as answer:
        return bytes(answer.read())


def test_a_wrong_range_is_refused_with_its_fault(db: Database, table: str) -> None:
    """The error names what is wrong with a range."""
    now = csn_of(db.insert(table, rows(1)).csn)
    with pytest.raises(BadRequestError, match="must not be above"):
        list(db.changes(table, now, now - 1).sets())
    with pytest.raises(NoSuchCsnError):
        db.changes(table, now, now + 1000).page()
    with pytest.raises(UnknownTableError):
        db.changes("nowhere", now).page()
    with pytest.raises(BadRequestError, match="files_max"):
        db.changes(table, now).page(files_max=0)
    with pytest.raises(BadRequestError, match="wait_bound_s"):
        db.changes(table, now).page(wait_s=1000)


def kinds(told: pa.Table) -> Counter[tuple[int, str, int, int | None]]:
    """CSN, kind, k and v of changed rows."""
    names = ("_commit_csn", "_change_type", "k", "v")
    return Counter(zip(*(told[name].to_pylist() for name in names), strict=True))


def test_changed_rows_are_told_whatever_was_rewritten(db: Database, table: str) -> None:
    """The feed has the rows that statements have changed, not all rows that they have rewritten."""
    start = db.seen_csn
    result = db.insert(table, rows(1, 2, 3))
    first = csn_of(result.csn)
    second = csn_of(db.update(table, {"v": "v + 1"}, "k = 2").csn)
    third = csn_of(db.upsert(table, rows(3, 4, v=7), on=["k"]).csn)
    fourth = csn_of(db.delete(table, "k = 1").csn)
    expected = Counter(
        [
            *((first, "insert", k, 0) for k in (1, 2, 3)),
            *((second, "delete", 2, 0), (second, "insert", 2, 1)),
            *((third, "delete", 3, 0), (third, "insert", 3, 7), (third, "insert", 4, 7)),
            (fourth, "delete", 1, 0),
        ]
    )
    told = db.changes(table, start).to_table()
    assert kinds(told) == expected
    assert told.schema.names == [*SCHEMA.names, "_change_type", "_commit_csn", "_commit_time"]
    assert told["_commit_time"][0].as_py() == result.time
    assert told["_commit_csn"].to_pylist() == sorted(told["_commit_csn"].to_pylist())
    batches = db.changes(table, start, third).to_batches()
    assert kinds(pa.Table.from_batches(batches)) == Counter(
        {row: count for row, count in expected.items() if row[0] <= third}
    )
    nothing = db.changes(table, fourth).to_table()
    assert (nothing.num_rows, nothing.schema) == (0, told.schema)


def test_of_each_csn_deletes_come_before_inserts(db: Database) -> None:
    """In all partitions: with parts that only come, only go or are rewritten, with a key or without one."""
    plain, keyed = (f"t{next(NUMBERS)}" for _ in range(2))
    columns = "p int not null, k bigint not null, v bigint"
    db.create_table(plain, columns, partition_by=["p"], properties={"compaction": "off"})
    key = {"unique_key": "p,k", "on_duplicate": "replace", "compaction": "off"}
    db.create_table(keyed, columns, partition_by=["p"], properties=key)

    def some(*partitions: int, k: range, v: int) -> pa.Table:
        pairs = [(p, one, v) for p in partitions for one in k]
        return pa.Table.from_pylist([{"p": p, "k": k, "v": v} for p, k, v in pairs]).cast(
            pa.schema([("p", pa.int32()), ("k", pa.int64()), ("v", pa.int64())])
        )

    for table in (plain, keyed):
        start = csn_of(db.insert(table, some(2, 3, 4, 5, k=range(20), v=0)).csn)
        with db.begin() as tx:
            tx.insert(table, some(1, 6, k=range(5), v=1))  # partitions that only get rows
            tx.delete(table, "p in (2, 5)")  # that only lose rows
            tx.update(table, {"v": "v + 1"}, "p in (3, 4) and k % 2 = 0")  # that are rewritten
            tx.upsert(table, some(3, k=range(19, 30), v=9), on=["p", "k"])
        with db.begin() as more:
            more.update(table, {"p": "p + 1"} if table == plain else {"v": "v + 100"}, "k < 3")
            more.insert(table, some(0, 9, k=range(3), v=2))
        feed = db.changes(table, start, csn_of(more.csn))
        last = csn_of(tx.csn), csn_of(more.csn)
        with db.subscribe(table, start, snapshot=False, until=last[1], batch_rows=7) as messages:
            told = pa.concat_tables(one.to_table() for one in messages if isinstance(one, Rows))
        pieces = pa.Table.from_batches(feed.to_batches())
        for found in (feed.to_table(), pieces, told, db.diff(table, start, last[1]).to_table()):
            order = list(
                zip(found["_commit_csn"].to_pylist(), found["_change_type"].to_pylist(), strict=True)
            )
            come = [(csn, kind in {"insert", "update_postimage"}) for csn, kind in order]
            assert come == sorted(come), "the CSNs rise, and of each all that goes comes first"
            kinds_of = {"delete", "insert"} | (
                {"update_preimage", "update_postimage"} if table == keyed else set()
            )
            assert {kind for csn, kind in order if csn == order[0][0]} == kinds_of
            assert len(set(come)) == (2 if order[0][0] == last[1] else 4)
            partitions = {*range(8 if table == plain else 7), 9}
            assert set(found["p"].to_pylist()) == partitions


def test_limits_of_an_answer(local: LocalCluster, db: Database, table: str) -> None:
    """A client cannot exceed the agent's own limits; the changes of one commit are never cut."""
    start = db.seen_csn
    inserted = [csn_of(db.insert(table, rows(number)).csn) for number in range(4)]
    with db.begin() as tx:
        tx.update(table, {"v": 1})
        tx.insert(table, rows(9))
    assert [one.csn for one in db.changes(table, start).page(files_max=3).sets] == inserted[:3]
    assert len(db.changes(table, start).page(files_max=1000).sets) == 4
    [last] = db.changes(table, inserted[-1]).page().sets
    assert len(last.removed) + len(last.added) > FILES_MAX
    sizes = [part.length for one in db.changes(table, start).sets() for part in one.added][:2]
    assert len(db.changes(table, start).page(bytes_max=sum(sizes)).sets) == 2
    assert len(db.changes(table, start).page(bytes_max=sum(sizes) - 1).sets) == 1
    assert db.changes(table, start).to_table().num_rows == 4 + 4 + 4 + 1


def test_rows_by_http_are_of_a_commit_or_a_range(db: Database, table: str) -> None:
    """A request names one commit or a range of commits, never both."""
    csn = csn_of(db.insert(table, rows(1)).csn)
    path = f"/tables/{table}/changes/rows"
    member, *_ = db._connection.members.in_order()

    def ask(**body: int) -> pa.Table:
        asked = msgspec.convert(body, ChangedRowsRequest)
        response = db._connection.transport.stream(member.api, path, asked)
        return pa.ipc.open_stream(response.read()).read_all()

    assert ask(csn=csn).equals(ask(**{"from": csn - 1, "to": csn}))
    assert ask(csn=csn).num_rows == 1
    for body in ({}, {"to": csn}, {"csn": csn, "to": csn}, {"csn": csn, "from": csn - 1, "to": csn}):
        with pytest.raises(BadRequestError, match="need from and to"):
            ask(**body)


def test_what_is_told_stays_readable(db: Database, table: str) -> None:
    """An open feed keeps its parts readable; a feed that begins below the horizon is refused."""
    start = csn_of(db.insert(table, rows(1)).csn)
    with db.changes(table, start) as feed:
        db.truncate(table)
        last = csn_of(db.insert(table, rows(2)).csn)
        assert db.raise_horizon()["horizon"] <= start
        assert {kind for _, kind, *_ in kinds(feed.to_table())} == {"delete", "insert"}

    def passed() -> bool:
        db.raise_horizon(drop_pins=True)
        return bool(db.status()["horizon"] > start)

    eventually(passed, what=f"a horizon above {start}")
    with pytest.raises(SnapshotTooOldError) as refused:
        list(feed.to_batches())
    assert start < refused.value.details["min_csn"] <= last
    with pytest.raises(SnapshotTooOldError):
        list(feed.sets())


@pytest.fixture(scope="module")
def names(local: LocalCluster) -> Iterator[dict[str, Any]]:
    """The names that the Python of docs/change-feed.md has defined."""
    defined: dict[str, Any] = {"url": local.url("r1")}
    pages.run("docs/change-feed.md", defined)
    yield defined
    defined["db"].close()


def test_the_page_runs_and_prints_what_it_shows(
    local: LocalCluster, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python of docs/change-feed.md runs, and its command prints what it shows, but CSNs and times."""
    monkeypatch.setenv("TIDELOCK_URL", local.url("r1"))
    [console] = pages.blocks("docs/change-feed.md", "console")
    command, _, shown = console.removeprefix("$ tidelock ").partition("\n")
    arguments = [str(names["first"].csn - 1) if word == "2" else word for word in command.split()]
    printed = CliRunner().invoke(cli.app, arguments)
    assert printed.exit_code == 0, printed.output
    assert Counter(_cells(printed.stdout)) == Counter(_cells(shown))
    [*told] = json.loads(CliRunner().invoke(cli.app, [*arguments, "--json"]).stdout)
    assert [row["_change_type"] for row in told].count("insert") == 3
    few = CliRunner().invoke(cli.app, [*arguments, "--rows", "1"])
    assert "1 changed rows" in few.stderr
    assert "there are more" in few.stderr


def test_runs_of_the_recipe_apply_each_change_once(db: Database, names: dict[str, Any]) -> None:
    """Two runs at a time, of which any may fail and begin again, make the copy equal to the table."""

    def run(until: int) -> None:
        while True:
            try:
                names["follow"]("shop", until)
            except (SerializationConflictError, LabelExistsError, RuntimeError):
                continue  # the other run was first; its position is the next one's beginning
            return

    with ThreadPoolExecutor(2) as pool:
        for number in range(3):
            db.upsert("prices", pa.table({"item": ["nut", f"i{number}"], "cents": [number] * 2}), on=["item"])
            last = csn_of(db.delete("prices", f"item = 'i{number - 1}'").csn or db.seen_csn)
            for one in [pool.submit(run, last) for _ in range(2)]:
                one.result()
    shown, prices = (
        Counter(map(str, db.read(table, ["item", "cents"]).to_pylist())) for table in ("shown", "prices")
    )
    assert shown == prices
    assert shown.total() == 3


def _cells(printed: str) -> list[tuple[str, ...]]:
    """The rows of a table that was printed, without their CSNs and times."""
    lines = (re.split("[│┃]", line) for line in printed.splitlines() if line[:1] in {"│", "┃"})
    return [tuple(cell.strip() for cell in cells[3:-1]) for cells in lines]
