"""Subscriptions and differences on real replicas: random histories, kills, and history that is collected."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.clusters.agreeing import all_follow
from tests.support.clusters.cluster import QUICK, ClusterFactory, restored
from tests.support.waiting import eventually
from tidelock.client import Database, Progress, Rows, Subscription, connect
from tidelock.cluster import LocalCluster
from tidelock.errors import TidelockError

SCHEMA: Final = pa.schema(
    [pa.field("p", pa.int32()), pa.field("k", pa.int64(), nullable=False), ("v", pa.string())]
)
NAMES: Final = tuple(SCHEMA.names)
NUMBERS = itertools.count(1)
GONE: Final = ("delete", "update_preimage")
#: Commits of a random history.
STEPS: Final = 30
Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def shared(module_cluster: ClusterFactory) -> LocalCluster:
    """Two replicas that delete history at once, unless it is pinned."""
    settings = {
        "sql_workers": 1,
        "horizon_interval_s": 0.2,
        "history_retention_s": 0.5,
        # A replica keeps what was read without a pin for this long, also what a subscription has left.
        "unpinned_ttl_s": 1.0,
        # A killed replica gives no pin back, and the tests of a file share their cluster.
        "snapshot_ttl_s": 3.0,
        "changes_files_max": 4,
    }
    return module_cluster(replicas=2, settings={**QUICK, **settings})


@pytest.fixture
def local(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster; afterwards both replicas are up again, with nothing left over."""
    with restored(shared) as found:
        yield found


@pytest.fixture
def db(local: LocalCluster) -> Iterator[Database]:
    """A client of all replicas that prefers r2, which no test kills."""
    with connect([local.url("r2"), local.url("r1")]) as found:
        yield found


@pytest.fixture
def table(local: LocalCluster, db: Database) -> str:
    """An empty table."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, SCHEMA, partition_by=["p"])
    all_follow(local)
    return name


def rows(*keys: int, v: str = "new") -> pa.Table:
    """Rows with these keys."""
    return pa.table({"p": [key % 2 for key in keys], "k": keys, "v": [v] * len(keys)}).cast(SCHEMA)


def bag(found: pa.Table) -> Counter[Row]:
    """Return rows as often as they occur."""
    return Counter(zip(*(found[name].to_pylist() for name in NAMES), strict=True))


@dataclass
class Model:
    """The rows of the table, as a subscriber makes them from its messages."""

    rows: Counter[Row] = field(default_factory=Counter)
    csn: int = 0

    def apply(self, message: Rows | Progress) -> None:
        """Apply rows; they are of CSNs above the last progress, and none goes that is not there."""
        if isinstance(message, Progress):
            assert message.csn >= self.csn
            self.csn = message.csn
            return
        assert message.csn >= self.csn
        changed = message.to_table()
        for row, kind in zip(bag_in_order(changed), changed["_change_type"].to_pylist(), strict=True):
            self.rows[row] += -1 if kind in GONE else 1
            assert self.rows[row] >= 0


def bag_in_order(found: pa.Table) -> list[Row]:
    """Return rows in their order."""
    return list(zip(*(found[name].to_pylist() for name in NAMES), strict=True))


class Writer:
    """Commits of all kinds to one table, one after the other."""

    def __init__(self, db: Database, table: str, seed: int) -> None:
        self._db, self._table, self._random = db, table, random.Random(seed)
        self.last: int | None = None

    def step(self) -> None:
        """Make one commit, or none if a replica has just died; every other one merges parts, too."""
        low = self._random.randrange(20)
        keys = [self._random.randrange(20) for _ in range(3)]
        where = f"k BETWEEN {low} AND {low + 3}"
        match self._random.randrange(6):
            case 0 | 1 | 2:
                self._commit(lambda: self._db.insert(self._table, rows(*keys)))
            case 3:
                self._commit(lambda: self._db.delete(self._table, where))
            case 4:
                self._commit(lambda: self._db.update(self._table, {"v": "v || 'x'", "p": "1 - p"}, where))
            case _:
                self._commit(lambda: self._db.optimize(self._table, timeout_s=5.0))

    def _commit(self, statement: Any) -> None:
        try:
            statement()
        except TidelockError as error:
            if not error.retriable:
                raise


def follow(local: LocalCluster, table: str, seed: int, done: threading.Event, end: list[int]) -> int:
    """Subscribe through r1, compare the model with the table at each progress; return their number."""
    chance = random.Random(seed)
    compared = 0
    with local.connect() as db, local.connect() as reader:
        first = db.seen_csn or db.last_change(table).csn
        with_rows = chance.random() < 0.5
        model = Model()
        with db.snapshot() as held:
            if not with_rows:
                model = Model(bag(held.read(table)), held.csn)
            feed = db.subscribe(
                table,
                held.csn,
                snapshot=with_rows,
                progress_every=chance.choice([0.05, 1.0]),
                batch_rows=chance.choice([1, 1000]),
                memory_bytes=chance.choice([1, 1 << 20]),
                lease="5s",
            )
        assert feed.as_of >= first
        with feed:
            for message in feed:
                model.apply(message)
                if isinstance(message, Progress):
                    assert +model.rows == bag(reader.read(table, csn=message.csn))
                    compared += 1
                    if done.is_set() and message.csn >= end[0]:
                        break
    return compared


@pytest.mark.parametrize("seed", [1])
def test_each_progress_stands_for_the_rows_at_its_csn(
    local: LocalCluster, db: Database, table: str, seed: int
) -> None:
    """Subscribers that began at any time have the rows of the table, also if their replica dies."""
    writer, done, end = Writer(db, table, seed), threading.Event(), [0]
    db.insert(table, rows(*range(20)))
    with ThreadPoolExecutor(3) as pool:
        running = []
        for step in range(STEPS):
            if step in {0, STEPS // 3, STEPS // 2}:
                running.append(pool.submit(follow, local, table, seed + step, done, end))
            if step == STEPS // 2:
                local.kill("r1")
            writer.step()
            if step == STEPS // 2:
                local.up()
        end[0] = db.seen_csn
        done.set()
        assert all(one.result() > 0 for one in running)


def test_a_replica_that_dies_in_the_snapshot_loses_no_row(
    local: LocalCluster, db: Database, table: str
) -> None:
    """The other replica sends the rest of the rows, in the order in which the first one would have."""
    chance = random.Random(7)
    keys = itertools.count()
    for _ in range(20):
        values = [chance.randbytes(100).hex() for _ in range(2000)]
        found = pa.table({"p": [0] * 2000, "k": [next(keys) for _ in values], "v": values})
        db.insert(table, found.cast(SCHEMA), wait="all")
    with local.connect() as reader:
        feed = reader.subscribe(table, lease="5s")
        model = Model()
        model.apply(next(feed))
        local.kill("r1")
        for message in feed:
            model.apply(message)
            if isinstance(message, Progress):
                break
        assert +model.rows == bag(db.read(table, csn=feed.as_of))
        feed.close()


def test_history_is_kept_for_a_slow_subscriber(db: Database, table: str) -> None:
    """Nothing that it has not received is deleted; what it has received is deleted soon."""
    db.insert(table, rows(1, 2, 3))
    with db.subscribe(table, lease="3s", progress_every=0.1) as feed:
        model = Model()
        model.apply(next(feed))
        for key in range(10):
            db.update(table, {"v": "v || 'y'"}, "k < 3")
            db.insert(table, rows(key))
        db.truncate(table)
        last = db.insert(table, rows(5)).csn
        assert last is not None
        assert db.raise_horizon()["horizon"] <= feed.as_of
        while model.csn < last:
            model.apply(next(feed))
        assert +model.rows == bag(rows(5))
        eventually(lambda: moved(db, feed), what="a horizon above the first CSN")
    assert feed.closed


def moved(db: Database, feed: Subscription) -> bool:
    """Read on, and return whether the horizon can pass the start of the subscription."""
    next(feed)
    return bool(db.raise_horizon()["horizon"] > feed.as_of)


def test_a_difference_has_no_rows_that_came_and_went(db: Database, table: str) -> None:
    """Between any two CSNs or times it is the rows of one minus those of the other, also after merges."""
    writer = Writer(db, table, 3)
    marks = [db.insert(table, rows(1, 1, 2)).csn or 0]
    with db.snapshot(marks[0]):
        for _ in range(12):
            writer.step()
            marks.append(db.seen_csn)
        bags = {csn: bag(db.read(table, csn=csn)) for csn in marks}
        for since, until in ((0, 12), (3, 9), (5, 5)):
            told = db.diff(table, marks[since], marks[until]).to_table()
            gone = bag(told.filter(pa.compute.equal(told["_change_type"], "delete")))
            come = bag(told.filter(pa.compute.equal(told["_change_type"], "insert")))
            before, after = bags[marks[since]], bags[marks[until]]
            assert (gone, come) == (before - after, after - before)
            assert set(told["_commit_csn"].to_pylist()) <= {marks[until]}
        newest = db.diff(table, marks[0])
        assert pa.Table.from_batches(newest.to_batches()).num_rows == told_between(bags, marks)
        assert newest.to_csn is not None
        assert newest.to_csn >= marks[-1]
        by_time = db.diff(table, marks[0], db.time_of(marks[-1])).to_table()
        assert by_time.num_rows == told_between(bags, marks)


def told_between(bags: dict[int, Counter[Row]], marks: list[int]) -> int:
    """Return the number of rows in the difference of the first and the last CSN."""
    first, last = bags[marks[0]], bags[marks[-1]]
    return (first - last).total() + (last - first).total()
