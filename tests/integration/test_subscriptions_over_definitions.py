"""Subscriptions and feeds of a table whose columns and name change, that is dropped, replaced, brought back.

A subscriber that begins before, at or after a change has at each progress the rows of that CSN, with the
columns that the table has there. The replica tells one part at a time, so that ranges are read in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.agreeing import agreeing
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tidelock.client import Database, Progress, Subscription
from tidelock.cluster import LocalCluster
from tidelock.errors import UnknownTableError

#: The least and the usual memory of a subscription: with the least one each commit is a page of its own.
MEMORY = [1, 16 << 20]
Row = dict[int, Any]


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Two replicas, which tell a part or two at a time, and agree at the end."""
    yield from agreeing(module_cluster(replicas=2, settings=QUICK | {"changes_files_max": 2}))


def rows(**columns: list[Any]) -> pa.Table:
    """Return rows."""
    return pa.table(columns)


class Subscriber:
    """The rows of a table, as a subscriber keeps them: by the ids of the columns of each progress."""

    def __init__(self, db: Database, table: str) -> None:
        self._db, self._table = db, table
        self._rows: list[Row] = []
        self._told: list[pa.Table] = []
        self.progress: list[int] = []

    def follow(self, feed: Subscription, until: int | None = None) -> None:
        """Take the messages up to a progress at a CSN, or to the end; compare at each progress."""
        for message in feed:
            if not isinstance(message, Progress):
                self._told.append(message.to_table())
                continue
            self._compare(message.csn)
            if until is not None and message.csn >= until:
                return

    def _compare(self, csn: int) -> None:
        """Apply what was told, and compare it with what a reader of the CSN sees."""
        columns = self._db.table(self._table, csn=csn).columns
        ids = {column.name: column.id for column in columns}
        shown = self._db.read(self._table, csn=csn)
        # A row of before holds the default in a column that was added; a dropped column is gone.
        added: Row = {
            column.id: None if column.default is None else int(column.default) for column in columns
        }
        self._rows = [{key: row.get(key, value) for key, value in added.items()} for row in self._rows]
        for told in self._told:
            assert told.schema.names[:-3] == shown.schema.names, f"rows of the progress at CSN {csn}"
            assert [field.type for field in told.schema][:-3] == [field.type for field in shown.schema]
            for row in told.to_pylist():
                kind = row["_change_type"]
                values = {ids[name]: row[name] for name in ids}
                if kind in {"delete", "update_preimage"}:
                    self._rows.remove(values)
                else:
                    self._rows.append(values)
        self._told = []
        expected = [{ids[name]: value for name, value in row.items()} for row in shown.to_pylist()]
        assert sorted(self._rows, key=repr) == sorted(
            [{key: row[key] for key in added} for row in expected], key=repr
        )
        self.progress.append(csn)


def changed_columns(db: Database) -> list[int]:
    """Change the columns of a table in all ways, with rows in between; return the CSNs, in their order."""
    csns = [db.create_table("t", "k bigint not null, a string, n int")["csn"]]

    def note(csn: int | None) -> None:
        csns.append(csn or 0)

    note(db.insert("t", rows(k=[1, 2], a=["x", "y"], n=pa.array([1, 2], pa.int32()))).csn)
    note(db.alter_table("t", add="b int default 5").csn)
    note(db.insert("t", rows(k=[3], a=["z"], n=pa.array([3], pa.int32()))).csn)
    note(db.alter_table("t", rename={"a": "c"}, order=["n"]).csn)
    note(db.update("t", {"c": "'q'", "b": "7"}, "k = 1").csn)
    note(db.alter_table("t", types={"n": "bigint"}).csn)
    note(db.insert("t", rows(k=[4], c=["w"], n=[1 << 40])).csn)
    note(db.alter_table("t", drop=["c"], add={"c": "bigint"}).csn)
    note(db.delete("t", "k = 2").csn)
    with db.begin() as tx:
        tx.alter_table("t", drop=["b"])
        tx.insert("t", rows(k=[5], n=[5], c=[5]))
    note(tx.csn)
    return csns


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.few(1)
def test_each_progress_has_the_columns_of_its_csn(dbs: list[Database], memory: int) -> None:
    """Whenever a subscription begins: before, at and after each change of the columns."""
    db = dbs[0]
    db.create_table("before", "k bigint")
    csns = changed_columns(db)
    db.alter_table("before", {"comment": "the newest CSN is above the last change"})
    for csn in csns:
        subscriber = Subscriber(dbs[1], "t")
        with db.subscribe("t", csn, until=csns[-1], memory_bytes=memory) as feed:
            subscriber.follow(feed)
        assert subscriber.progress[0] == csn
        assert subscriber.progress[-1] == csns[-1]
        if memory == 1:
            assert len(subscriber.progress) >= len([one for one in (1, 3, 5, 7, 9, 10) if csns[one] > csn])


def test_a_subscriber_lives_through_changes_of_columns(dbs: list[Database]) -> None:
    """It waits while each of them is committed, and has the rows of each with the columns of then."""
    db = dbs[0]
    db.create_table("t", "k bigint not null, a string")
    subscriber = Subscriber(dbs[1], "t")
    with db.subscribe("t", progress_every=0.1) as feed:
        subscriber.follow(feed, until=feed.as_of)
        changes: tuple[Callable[[], int | None], ...] = (
            lambda: db.insert("t", rows(k=[1], a=["x"])).csn,
            lambda: db.alter_table("t", add="b smallint not null default 3").csn,
            lambda: db.update("t", {"a": "'y'"}).csn,
            lambda: db.alter_table("t", rename={"b": "a", "a": "b"}).csn,
            lambda: db.insert("t", rows(k=[2], b=["z"])).csn,
            lambda: db.alter_table("t", types={"a": "bigint"}, drop=["b"]).csn,
            lambda: db.delete("t", "k = 1").csn,
        )
        for change in changes:
            csn = change()
            assert csn is not None
            subscriber.follow(feed, until=csn)
    assert dbs[1].read("t", csn=db.seen_csn).to_pydict() == {"k": [2], "a": [3]}


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("end", ["rename", "move", "drop", "replace"])
@pytest.mark.few(3)
def test_a_subscription_ends_behind_the_last_change_of_its_table(
    dbs: list[Database], end: str, memory: int
) -> None:
    """It tells all that was committed before, and then says what became of the name, and at which CSN."""
    db = dbs[0]
    db.create_table("t", "k bigint not null")
    first = db.insert("t", rows(k=[1])).csn or 0
    live = db.subscribe("t", progress_every=0.1, memory_bytes=memory)
    subscriber = Subscriber(dbs[1], "t")
    subscriber.follow(live, until=first)
    db.delete("t", "k = 1")
    last = db.insert("t", rows(k=[2, 3])).csn or 0
    ends: dict[str, Callable[[], int | None]] = {
        "rename": lambda: db.rename_table("t", "u").csn,
        "move": lambda: db.rename_table("t", "sales.t").csn,
        "drop": lambda: db.drop_table("t"),
        "replace": lambda: db.create_table("t", "k string", or_replace=True)["csn"],
    }
    lost = ends[end]()
    assert lost is not None
    if end == "replace":
        db.insert("t", rows(k=["of the next table"]))
    late = db.subscribe("t", first, memory_bytes=memory)
    for feed, one in ((live, subscriber), (late, Subscriber(dbs[1], "t"))):
        with pytest.raises(UnknownTableError, match=f"at CSN {lost} it was dropped or got another name"):
            one.follow(feed)
        assert one.progress[-1] == lost - 1 >= last
        assert feed.closed
    for until in (last, lost - 1):
        with db.subscribe("t", first, until=until, memory_bytes=memory) as feed:
            one = Subscriber(dbs[1], "t")
            one.follow(feed)
            assert one.progress[-1] == until
    if end != "replace":
        with pytest.raises(UnknownTableError):
            db.subscribe("t", lost)
    else:
        with db.subscribe("t", lost, until=db.seen_csn) as feed:
            one = Subscriber(dbs[1], "t")
            one.follow(feed)
    if end in {"rename", "move"}:
        name = "u" if end == "rename" else "sales.t"
        more = db.insert(name, rows(k=[4])).csn or 0
        with db.subscribe(name, lost, until=more, memory_bytes=memory) as feed:
            one = Subscriber(dbs[1], name)
            one.follow(feed)
            assert one.progress[-1] == more


@pytest.mark.parametrize("memory", MEMORY)
def test_a_table_that_is_brought_back_is_followed_on(dbs: list[Database], memory: int) -> None:
    """By a new subscription at the position of the one that has ended: there is no table in between."""
    db = dbs[0]
    db.create_table("t", "k bigint not null")
    first = db.insert("t", rows(k=[1, 2])).csn or 0
    with db.subscribe("t", progress_every=0.1, memory_bytes=memory) as feed:
        subscriber = Subscriber(dbs[1], "t")
        subscriber.follow(feed, until=first)
        dropped = db.drop_table("t") or 0
        with pytest.raises(UnknownTableError, match=f"at CSN {dropped}"):
            subscriber.follow(feed)
        position = feed.position
    back = db.undrop_table("t").csn
    last = db.delete("t", "k = 1").csn or 0
    for resume, as_of in ((position, None), (None, first), (None, dropped - 1), (None, back)):
        found = [] if resume is None else [1, 2]
        with db.subscribe("t", as_of, resume=resume, until=last, memory_bytes=memory) as feed:
            for message in feed:
                if isinstance(message, Progress):
                    there = (
                        [] if message.csn == dropped else dbs[1].read("t", csn=message.csn)["k"].to_pylist()
                    )
                    assert sorted(found) == sorted(there), message
                    continue
                for row in message.to_table().to_pylist():
                    (found.append if row["_change_type"] == "insert" else found.remove)(row["k"])
        assert found == [2]
    with pytest.raises(UnknownTableError):
        db.subscribe("t", dropped)


def test_a_feed_that_is_read_in_pieces_has_the_columns_of_its_end(dbs: list[Database]) -> None:
    """Over changes of columns and of the name: one schema, whether its rows come at once or in batches."""
    db = dbs[0]
    csns = changed_columns(db)
    db.rename_table("t", "sales.u")
    end = db.insert("sales.u", rows(k=[6], n=[6], c=[6])).csn or 0
    expected = dbs[1].read("sales.u", csn=end)
    names = [*expected.schema.names, "_change_type", "_commit_csn", "_commit_time"]
    for feed in (dbs[1].changes("sales.u", csns[0], end), dbs[1].changes("sales.u", csns[0])):
        told = feed.to_table()
        assert told.schema.names == names
        assert [field.type for field in told.schema][:-3] == [field.type for field in expected.schema]
        assert {str(batch.schema) for batch in feed.to_batches()} == {str(told.to_batches()[0].schema)}
        left: list[dict[str, Any]] = []
        for row in told.to_pylist():
            values = {name: row[name] for name in expected.schema.names}
            (left.append if row["_change_type"] == "insert" else left.remove)(values)
        assert sorted(left, key=repr) == sorted(expected.to_pylist(), key=repr)
        assert told["_commit_csn"].to_pylist() == sorted(told["_commit_csn"].to_pylist())
