"""Random histories over tables with a unique key: no key twice at any CSN, nothing lost, nothing left.

Writers with homes at three replicas insert, replace, upsert and delete rows with few keys, while parts are
compacted and replicas are killed. Each writer reads its own view before and after every statement, and checks
the effect of the statement. Then all commits are applied to a model in the order of the log, and every CSN is
compared with it, on a random replica. A derived table follows the rows that are only added.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left, require_clean_audit
from tests.support.histories.table_model import Floats, compares, float_of, in_sql, require_floats
from tests.support.waiting import eventually
from tidelock.client import Database, Snapshot, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    CommitUnknownError,
    DuplicateKeyError,
    RefusedError,
    SerializationConflictError,
    TidelockError,
    UnavailableError,
)

EAGER: Final = {
    **QUICK,
    "lock_wait_s": 0.0,
    "compaction_interval_s": 0.2,
    "compaction_parts_min": 2,
    "compaction_quiet_s": 0.2,
    # Locks of committed transactions are deleted as early as possible.
    "log_keep_records": 1,
    "horizon_interval_s": 0.5,
    "lock_sweep_interval_s": 0.5,
    "clean_interval_s": 1,
}
SCHEMA: Final = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("p", pa.int32(), nullable=False),
        ("v", pa.int64()),
        ("f", pa.float64()),
    ]
)
#: Conditions on the float of a row, which its value decides: NaN is the largest, and zeros are equal.
OF_FLOATS: Final = (Floats("=", "nan"), Floats(">", "1"), Floats("=", "0"), Floats("<=", "-inf"))
KEYS: Final = 60
PARTITIONS: Final = 2
SECONDS: Final = 40.0
WRITERS: Final = 4

Key = tuple[int, int]
#: The values of a table by key.
View = dict[Key, int]
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def shared(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module."""
    return module_cluster(settings=EAGER)


@pytest.fixture
def local(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, with all replicas up before and after the test."""
    shared.up()
    yield shared
    shared.up()


@dataclass(frozen=True, slots=True)
class Committed:
    """The rows that a transaction saw and left; ``inserted`` are the values that its inserts have added."""

    tid: str
    csn: int
    before: View
    after: View
    inserted: tuple[int, ...]


@dataclass(slots=True)
class Told:
    """The answers that the writers got."""

    commits: list[Committed] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    wrong: list[BaseException] = field(default_factory=list)

    def count(self, what: str) -> None:
        """Note how a transaction ended."""
        self.ends[what] = self.ends.get(what, 0) + 1


def view_of(reader: Transaction | Snapshot, table: str) -> View:
    """Return a table's rows by key, after checking that no key comes twice."""
    found = reader.read(table).to_pylist()
    view = {(row["k"], row["p"]): row["v"] for row in found}
    assert len(view) == len(found), f"a key comes twice: {sorted(map(str, found))}"
    require_floats([row["f"] for row in found], [row["v"] for row in found])
    return view


def arrow(rows: list[tuple[Key, int]]) -> pa.Table:
    """Return rows as a client gives them."""
    return pa.Table.from_pylist([{"k": k, "p": p, "v": v, "f": float_of(v)} for (k, p), v in rows], SCHEMA)


class Writer:
    """A thread that opens one session after the other, each at a random replica."""

    def __init__(self, local: LocalCluster, table: str, replaces: bool, seed: int, told: Told) -> None:
        self._local, self._table, self._replaces, self._told = local, table, replaces, told
        self._random = random.Random(seed)
        self._values = itertools.count(seed * 1_000_000)
        self._inserted: list[int] = []

    def work(self, until: float) -> None:
        """Run transactions; keep unexpected errors for the test."""
        try:
            while time.monotonic() < until:
                replica = self._random.choice(self._local.replicas)
                with contextlib.suppress(UnavailableError), self._local.connect(replica) as db:
                    self._transaction(db)
        except BaseException as error:  # the test's main thread raises it
            self._told.wrong.append(error)

    def _transaction(self, db: Database) -> None:
        tx = db.begin()
        self._inserted.clear()
        try:
            before = after = view_of(tx, self._table)
            for _ in range(self._random.choice((1, 1, 2, 3))):
                after = self._statement(tx, after)
            if self._random.random() < 0.1:
                tx.rollback()
                self._told.count("rolled back")
                return
            self._commit(tx, before, after)
        except DuplicateKeyError:
            self._told.count("duplicate")
        except SerializationConflictError:
            self._told.count("conflict")
        except (RefusedError, UnavailableError) as error:
            self._told.count(type(error).__name__)
        with contextlib.suppress(TidelockError):
            tx.rollback()

    def _commit(self, tx: Transaction, before: View, after: View) -> None:
        try:
            csn = tx.commit().csn
        except CommitUnknownError:
            found = eventually(lambda: self._outcome(tx.tid))
            assert found is not None
            csn = found[0]
        if csn is not None:
            self._told.commits.append(Committed(tx.tid, csn, before, after, tuple(self._inserted)))
            self._told.count("committed")

    def _outcome(self, tid: str) -> tuple[int | None] | None:
        for replica in self._local.replicas:
            with contextlib.suppress(TidelockError), self._local.connect(replica) as db:
                found = db.outcome(tid)
                if found.decision in {"committed", "aborted"}:
                    return (found.csn,)
        return None

    def _statement(self, tx: Transaction, view: View) -> View:
        """Run one statement; return the view that it must leave, and has left."""
        match self._random.choices(("insert", "upsert", "delete", "floats", "drop"), (12, 3, 4, 1, 1))[0]:
            case "insert":
                after = self._insert(tx, view)
            case "upsert":
                rows = dict(self._rows(repeat=False))
                tx.upsert(self._table, arrow(list(rows.items())), on=["p", "k"])
                after = view | rows
            case "delete":
                low = self._random.randrange(KEYS)
                tx.delete(self._table, "k between ? and ?", [low, low + 3])
                after = {key: value for key, value in view.items() if not low <= key[0] <= low + 3}
            case "floats":
                where = self._random.choice(OF_FLOATS)
                tx.delete(self._table, *in_sql(where))
                after = {key: value for key, value in view.items() if not compares(where, float_of(value))}
            case _:
                gone = self._random.randrange(PARTITIONS)
                tx.drop_partition(self._table, {"p": gone})
                after = {key: value for key, value in view.items() if key[1] != gone}
        assert view_of(tx, self._table) == after
        return after

    def _insert(self, tx: Transaction, view: View) -> View:
        rows = self._rows(repeat=True)
        new = dict(rows)
        duplicates = len({key for key, _ in rows if key in view or [k for k, _ in rows].count(key) > 1})
        try:
            staged = tx.insert(self._table, arrow(rows)).rows
        except DuplicateKeyError as error:
            if self._replaces or error.details["keys"] != duplicates:
                raise AssertionError(f"{duplicates} duplicates, found {error.details}") from error
            raise
        assert self._replaces or not duplicates, "duplicates were taken"
        assert staged == len(new)
        self._inserted += new.values()
        return view | new

    def _rows(self, *, repeat: bool) -> list[tuple[Key, int]]:
        """Return rows whose keys lie near to each other."""
        low, count = self._random.randrange(KEYS), self._random.choice((1, 1, 2, 3, 8))
        keys = [
            (low + self._random.randrange(count + 2), self._random.randrange(PARTITIONS))
            for _ in range(count)
        ]
        if not repeat or self._random.random() < 0.8:
            keys = list(dict.fromkeys(keys))
        return [(key, next(self._values)) for key in keys]


def nemesis(local: LocalCluster, seed: int, until: float) -> None:
    """Kill a replica now and then, and start it again."""
    chance = random.Random(seed)
    while time.monotonic() < until - 6:
        time.sleep(chance.uniform(3, 6))
        replica = chance.choice(local.replicas)
        local.kill(replica)
        local.start(replica)


def judge(local: LocalCluster, table: str, log: str, told: Told, chance: random.Random) -> None:
    """Apply what was committed to a model in the order of the log, and compare every CSN with it.

    The derived table ``log``, if it exists, is compared too: it has the values that inserts have added.
    """
    by_csn: dict[int, list[Committed]] = {}
    for commit in told.commits:
        by_csn.setdefault(commit.csn, []).append(commit)
    model, followed = {(-1, 0): -1}, [-1]
    with contextlib.ExitStack() as stack:
        dbs = [stack.enter_context(local.connect(replica)) for replica in local.replicas]
        end = max(int(db.status()["end_csn"]) for db in dbs)
        derived = f"default.{log}" in {found["name"] for found in dbs[0].tables(csn=end)}
        for csn in range(min(by_csn) - 1, end + 1):
            for commit in by_csn.get(csn, []):
                model = applied(model, commit)
                followed += commit.inserted
            with chance.choice(dbs).snapshot(csn=csn) as snapshot:
                assert view_of(snapshot, table) == model, f"CSN {csn}"
                if derived:
                    assert sorted(snapshot.read(log, ["v"])["v"].to_pylist()) == sorted(followed), (
                        f"CSN {csn}"
                    )


def applied(model: View, commit: Committed) -> View:
    """Return the model after a commit; check that the replaced rows are as the transaction saw them."""
    before, after = commit.before, commit.after
    touched = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    for key in touched:
        assert model.get(key) == before.get(key), f"{commit.tid} at CSN {commit.csn} did not see {key}"
    kept = {key: value for key, value in model.items() if key not in touched}
    return kept | {key: after[key] for key in touched if key in after}


@pytest.mark.slow
@pytest.mark.parametrize("on_duplicate", ["refuse", "replace"])
@pytest.mark.parametrize("kills", [False, True], ids=["quiet", "kills"])
def test_no_key_is_there_twice_at_any_csn(
    local: LocalCluster, on_duplicate: str, kills: bool, fresh_seed: int
) -> None:
    """No key is there twice at any CSN, on any replica, under concurrent writers."""
    table, log = f"u{next(NUMBERS)}", f"l{next(NUMBERS)}"
    properties = {"unique_key": "k,p", "on_duplicate": on_duplicate}
    with local.connect() as db:
        db.create_table(table, SCHEMA, partition_by=["p"], sort_by=["v"], properties=properties)
        if on_duplicate == "refuse":  # a table that replaces rows has no dependents
            db.create_table(log, SCHEMA, derived_from=table, derived_sql="from inserted")
        db.insert(table, arrow([((-1, 0), -1)]), wait="all")
    told = Told()
    until = time.monotonic() + SECONDS
    writers = [Writer(local, table, on_duplicate == "replace", fresh_seed + n, told) for n in range(WRITERS)]
    threads = [threading.Thread(target=writer.work, args=(until,)) for writer in writers]
    if kills:
        threads.append(threading.Thread(target=nemesis, args=(local, fresh_seed, until)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(told.ends)  # noqa: T201 - shown with a failure
    if told.wrong:
        raise told.wrong[0]
    wanted = {"committed", "conflict"} | ({"duplicate"} if on_duplicate == "refuse" else set())
    assert wanted <= told.ends.keys()
    local.up()
    judge(local, table, log, told, random.Random(fresh_seed))
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
    require_clean_audit(local)
