"""Writers and readers that keep a cluster busy and write down what they are told.

Each writer is a session that inserts +n into table a and -n into table b, sometimes into two partitions of
it, in one transaction; some are rolled back, some refused. Each reader is a session that reads both tables at
one CSN, now and then at an old one, and lists the parts. Nothing that goes wrong is hidden: what a client may
have to bear is part of the history, everything else ends the test.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from tests.support.rows import ALL_TYPES, EXTREMES
from tests.support.waiting import eventually
from tidelock.client import Database, Snapshot, Transaction, connect
from tidelock.cluster import LocalCluster
from tidelock.errors import CommitUnknownError, RefusedError, TidelockError, UnavailableError
from workloads.agents import ask
from workloads.history import CallEnd, Recorder

#: Rows of one write in both tables.
ROWS: Final = (1, 2)
_BOTH: Final = (pa.field("k", pa.string(), nullable=False), pa.field("n", pa.int64()))
#: Columns of the first table that hold an extreme value of their type in the first row of each write.
_EXTREME: Final = ("c_double", "c_decimal_38", "c_string", "c_binary", "c_timestamp")
SCHEMA_A: Final = pa.schema([*_BOTH, *((name, ALL_TYPES[name]) for name in _EXTREME)])
SCHEMA_B: Final = pa.schema([*_BOTH, pa.field("half", pa.string())])
#: Every so many writes of a writer one is rolled back, one refused by a statement, one of two partitions.
ROLLBACK_EACH, REFUSAL_EACH, HALVES_EACH = 5, 11, 4

#: Tables that grow for minutes would make the reads of a busy machine slow.
_PAUSE_S: Final = 0.1
_PAUSE_AFTER_ERROR_S: Final = 0.1
_READ_PAUSE_S: Final = 0.1
_JOIN_S: Final = 60.0
#: Reads at old CSNs go back so many reads.
_REMEMBERED: Final = 50


class Workload:
    """Load on a running cluster, between entering and leaving the `with` block.

    Args:
        cluster: It runs.
        folder: For the history.
        name: Of the tables (``<name>_a``, ``<name>_b``), which must not exist.
        writers: For each writer the replica it works with; None = any, going on to another by itself.
        hoppers: How many more writers begin each transaction on another replica than the one before.
        readers: As `writers`.
        timeout_s: How long a client waits for an answer, and for the outcome of a commit.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        folder: Path,
        name: str,
        *,
        writers: Sequence[str | None],
        hoppers: int = 0,
        readers: Sequence[str | None] = (),
        timeout_s: float = 10.0,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.tables = (f"default.{name}_a", f"default.{name}_b")
        self.recorder = Recorder(folder / f"{name}.jsonl")
        self.timeout_s = timeout_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._committed: Counter[str] = Counter()
        self._reads: Counter[str] = Counter()
        self._errors: list[BaseException] = []
        clients: list[_Client] = [_Writer(self, f"{name}-w{n}", of) for n, of in enumerate(writers)]
        clients += [_Hopper(self, f"{name}-h{n}", None) for n in range(hoppers)]
        clients += [_Reader(self, f"{name}-r{n}", of) for n, of in enumerate(readers)]
        self._threads = [
            threading.Thread(target=self._run, args=(client,), name=client.process) for client in clients
        ]

    def __enter__(self) -> Self:
        with self.cluster.connect() as db:
            db.create_table(self.tables[0], SCHEMA_A)
            csn = db.create_table(self.tables[1], SCHEMA_B, partition_by=["half"])["csn"]
        for replica in self.cluster.replicas:  # a reader elsewhere may begin at a CSN before the tables
            with self.cluster.connect(replica) as db:
                db.tables(csn=csn)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_JOIN_S)
        self.recorder.__exit__(kind, error, trace)
        if error is None:
            assert not any(thread.is_alive() for thread in self._threads), "a client hangs"
            if self._errors:
                raise self._errors[0]

    def commits(self, *homes: str) -> int:
        """Return how many commits were acknowledged, by these homes or by all."""
        with self._lock:
            return sum(count for home, count in self._committed.items() if not homes or home in homes)

    def more_commits(self, count: int, *homes: str) -> None:
        """Wait for so many more acknowledged commits; by each of these homes, or by all together."""
        groups: list[tuple[str, ...]] = [(home,) for home in homes]
        for group in groups or [()]:
            goal = self.commits(*group) + count
            self._wait(lambda group=group, goal=goal: self.commits(*group) >= goal, f"{count} more commits")  # type: ignore[misc]

    def more_reads(self, count: int, *replicas: str) -> None:
        """Wait until each of these replicas has answered so many more reads of its readers."""
        for replica in replicas:
            goal = self._reads[replica] + count
            self._wait(
                lambda replica=replica, goal=goal: self._reads[replica] >= goal,  # type: ignore[misc]
                f"{count} more reads on {replica}",
            )

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        eventually(lambda: self._errors or condition(), what=what)
        if self._errors:
            raise self._errors[0]

    def _run(self, client: _Client) -> None:
        try:
            while not self._stop.is_set():
                self._stop.wait(client.step())
        except BaseException as error:
            self._errors.append(error)
        finally:
            client.close()

    def committed(self, tid: str) -> None:
        """Count a commit by its home."""
        with self._lock:
            self._committed[tid.split("-")[1]] += 1

    def has_read(self, replica: str) -> None:
        """Count a read."""
        with self._lock:
            self._reads[replica] += 1


class _Client:
    """A session; what it does in `step` returns the pause behind it, in seconds."""

    def __init__(self, load: Workload, process: str, replica: str | None) -> None:
        self.load = load
        self.process = process
        self.replica = replica
        self.number = 0
        self.last_csn = 0
        self._db: Database | None = None

    @property
    def db(self) -> Database:
        """The connection, made at the first use; errors as in `tidelock.connect`."""
        if self._db is None:
            cluster = self.load.cluster
            urls = cluster.urls if self.replica is None else [cluster.url(self.replica)]
            self._db = connect(urls, replica=self.replica, timeout_s=self.load.timeout_s)
        return self._db

    def step(self) -> float:
        """Do one thing."""
        raise NotImplementedError

    def close(self) -> None:
        """End the session."""
        if self._db is not None:
            self._db.close()

    def note(self, kind: CallEnd | str, f: str, **fields: Any) -> None:
        """Write a line of the history."""
        self.load.recorder.note(kind, f, self.process, **fields)


class _Writer(_Client):
    def step(self) -> float:
        self.number += 1
        key = f"{self.process}-{self.number}"
        self.note("invoke", "write", key=key, rows=ROWS)
        tx = None
        try:
            tx = self.begin()
            self._fill(tx, key)
        except TidelockError as error:
            with contextlib.suppress(TidelockError):
                if tx is not None:
                    tx.rollback()
            self.note(CallEnd.FAIL, "write", key=key, tid=tx and tx.tid, error=repr(error))
            return _PAUSE_S if isinstance(error, RefusedError) else _PAUSE_AFTER_ERROR_S
        return self._roll_back(tx, key) if self.number % ROLLBACK_EACH == 0 else self._commit(tx, key)

    def begin(self) -> Transaction:
        """Begin a transaction, at once: its tid is noted whatever becomes of it."""
        tx = self.db.begin()
        assert tx.tid
        return tx

    def _fill(self, tx: Transaction, key: str) -> None:
        n = self.number + 1
        first, second = self.load.tables
        halves = ["left", "right" if self.number % HALVES_EACH == 0 else "left"]
        tx.insert(first, rows_of_a(key, [n]))
        tx.insert(second, pa.table({"k": [key, key], "n": [1 - n, -1], "half": halves}))
        if self.number % REFUSAL_EACH == 0:
            tx.insert(first, pa.table({"k": [key], "n": ["no number"]}))

    def _roll_back(self, tx: Transaction, key: str) -> float:
        error = "rolled back"
        try:
            tx.rollback()
        except TidelockError as failed:
            error = repr(failed)
        self.note(CallEnd.FAIL, "write", key=key, tid=tx.tid, error=error)
        return _PAUSE_S

    def _commit(self, tx: Transaction, key: str) -> float:
        self.note("invoke", "commit", key=key, tid=tx.tid, snapshot=tx.snapshot_csn)
        try:
            result = tx.commit()
        except TidelockError as error:
            certain = isinstance(error, RefusedError) and not isinstance(error, CommitUnknownError)
            end = CallEnd.FAIL if certain else CallEnd.INFO
            self.note(end, "write", key=key, tid=tx.tid, csn=tx.csn, error=repr(error))
            return _PAUSE_AFTER_ERROR_S
        self.note(CallEnd.OK, "write", key=key, tid=result.tid, csn=result.csn)
        self.load.committed(result.tid)
        self.last_csn = result.csn or self.last_csn
        return _PAUSE_S


class _Hopper(_Writer):
    """One session over all replicas: what it committed on one is in its next snapshot elsewhere (I11)."""

    def __init__(self, load: Workload, process: str, replica: str | None) -> None:
        super().__init__(load, process, replica)
        self._dbs: dict[str, Database] = {}

    def begin(self) -> Transaction:
        cluster = self.load.cluster
        replica = cluster.replicas[self.number % len(cluster.replicas)]
        if replica not in self._dbs:
            url = cluster.url(replica)
            self._dbs[replica] = connect(url, replica=replica, timeout_s=self.load.timeout_s)
        return self._dbs[replica].begin(min_csn=self.last_csn)

    def close(self) -> None:
        for db in self._dbs.values():
            db.close()


class _Reader(_Client):
    def __init__(self, load: Workload, process: str, replica: str | None) -> None:
        super().__init__(load, process, replica)
        self._seen: list[int] = []

    def step(self) -> float:
        self.number += 1
        # Two reads of what is newest, then one of the oldest CSN that is remembered.
        old = self._seen[0] if self._seen and self.number % 3 == 0 else None
        self.note("invoke", "read", csn=old)
        try:
            with self.db.snapshot(old) as snap:
                rows = balances(snap, self.load.tables)
                replica = self.replica or f"any, pinned on {snap.holder}"
                self.note(CallEnd.OK, "read", replica=replica, csn=snap.csn, exact=old is not None, rows=rows)
                if self.replica is not None:
                    lists(self.load, self.replica, snap.csn, self.note)
        except UnavailableError as error:
            self.note(CallEnd.FAIL, "read", error=repr(error))
            return _PAUSE_AFTER_ERROR_S
        self._seen = [*self._seen[-_REMEMBERED:], snap.csn]
        if self.replica is not None:
            self.load.has_read(self.replica)
        return _READ_PAUSE_S


def extremes_of(key: str) -> dict[str, Any]:
    """Return the extreme values of a write, which its key determines."""
    drawn = random.Random(key)
    return {name: drawn.choice(EXTREMES[name]) for name in _EXTREME}


def rows_of_a(key: str, numbers: Sequence[int]) -> pa.Table:
    """Return the rows of a write in the first table."""
    rows = [{"k": key, "n": number} for number in numbers]
    rows[0].update(extremes_of(key))
    return pa.Table.from_pylist(rows, schema=SCHEMA_A)


def wrong_extremes(snap: Snapshot, tables: Sequence[str]) -> list[str]:
    """Return the keys whose first row does not have the extreme values that were written."""
    first = tables[0].rpartition(".")[2]
    columns = ", ".join(_EXTREME)
    found = snap.sql(f"select k, {columns} from {first} where c_double is not null")
    return [
        row["k"]
        for row in found.to_pylist()
        if repr({name: _in_utc(row[name]) for name in _EXTREME}) != repr(extremes_of(row["k"]))
    ]


def _in_utc(value: object) -> object:
    """Return a moment with the standard library's UTC; Arrow may give the zone of another library."""
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


def balances(snap: Snapshot, tables: Sequence[str]) -> list[list[Any]]:
    """Read both tables by one statement: key, sum and rows in the first, sum and rows in the second."""
    first, second = (table.rpartition(".")[2] for table in tables)  # "default" is a word of SQL
    found = snap.sql(
        "select k, coalesce(sum(a), 0)::bigint, count(a), coalesce(sum(b), 0)::bigint, count(b) from "
        f"(select k, n as a, null as b from {first} union all select k, null, n from {second}) "
        "group by k order by k"
    )
    return [list(row) for row in zip(*(column.to_pylist() for column in found.columns), strict=True)]


def lists(
    load: Workload, replica: str, csn: int, note: Callable[..., None]
) -> dict[str, list[dict[str, Any]]]:
    """List the parts of both tables on a replica, note and return them; errors of the agent are raised."""
    found = {}
    for table in load.tables:
        parts = ask(load.cluster, replica, f"/parts?csn={csn}&table={table}", timeout_s=load.timeout_s)
        facts = [[part[name] for name in ("part", "path", "rows", "length", "checksum")] for part in parts]
        note(CallEnd.OK, "parts", replica=replica, csn=csn, table=table, parts=facts)
        found[table] = parts
    return found
