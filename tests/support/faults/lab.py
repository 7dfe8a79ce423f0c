"""A cluster whose replicas fail at named points when a test says so, with a history of all transactions.

Every replica is started with its faults armed, each behind a file of its own (its gate); a fault acts only
while its gate is open. So one cluster serves many tests, and a fault hits the very transaction that the test
has under way: while a gate is open the background writer keeps still, so nothing else passes the point.

The requests of clients and their answers go into the history of :mod:`workloads.history`, which is checked as
a whole when the lab closes (I1 to I11, I17). After each test :meth:`Lab.require_settled` compares the
replicas (I10) and searches for leftovers (I13).
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa

from tests.support.clusters.cluster import ClusterFactory
from tests.support.histories.evidence import leftovers, verify
from tests.support.histories.workload import ROWS, SCHEMA_B, Workload, rows_of_a
from tests.support.waiting import INTERVAL_S, eventually
from tidelock.client import Database, Transaction, connect
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core.ids import Csn
from tidelock.errors import CommitUnknownError, RefusedError, TidelockError
from workloads.agents import ask
from workloads.history import CallEnd

#: Rows of a large part: more than `inline_part_bytes_max` below, so it has a file of its own and is fetched.
LARGE_ROWS: Final = 6000
#: Short pauses and one reader process make restarts fast. Inline parts are small. Without compaction no merge
#: passes a fault point that is meant for the transaction of a test.
SETTINGS: Final[dict[str, Any]] = {
    "clean_interval_s": 1,
    "compaction": False,
    # The log alone decides about the transactions of a dead home: it is not fenced before it is back.
    "fence_timeout_s": 600,
    "refused_timeout_s": 0,
    "inline_part_bytes_max": 16 * 1024,
    "reader_workers": 1,
    "retry_wait_max_s": 0.2,
    "undecided_check_s": 0.2,
}
#: The home of the background writer's transactions. No test kills the writer or this replica.
BYSTANDER: Final = "r3"

#: Number of parts of an attempt: one in the first table, one for each half in the second.
PARTS: Final = 3

#: How long the background tasks may need to end what a dead home has left, in seconds.
_LEFT_S: Final = 20.0
_WRITER_PAUSE_S: Final = 0.2
#: After this time a client gives up asking for an outcome, in seconds. A stuck test ends earlier.
_PATIENCE_S: Final = 60.0


class Gates:
    """The faults of a cluster's replicas.

    Args:
        folder: The folder for the gates and the journals.
        faults: By replica: point and fault (`kind[@n]`).
    """

    def __init__(self, folder: Path, faults: Mapping[str, Mapping[str, str]]) -> None:
        self._folder = folder
        self._faults = faults
        self._hits_before: dict[tuple[str, str], int] = {}  # when its gate was opened last
        for replica in faults:
            (folder / replica).mkdir(parents=True)

    def environment(self, replica: str) -> dict[str, str]:
        """Return the variables that arm a replica."""
        armed = (
            f"{point}={kind}:{self._gate(replica, point)}" for point, kind in self._faults[replica].items()
        )
        return {
            "TIDELOCK_FAULTS": ";".join(armed),
            "TIDELOCK_FAULTS_JOURNAL": str(self._folder / replica / "journal"),
        }

    @contextlib.contextmanager
    def open(self, replica: str, *points: str) -> Iterator[None]:
        """Let faults act inside the block; AssertionError if one of them has not hit."""
        before = {point: self.hits(replica, point) for point in points}
        self._hits_before |= {(replica, point): hits for point, hits in before.items()}
        gates = [self._gate(replica, point) for point in points]
        for point, gate in zip(points, gates, strict=True):
            assert point in self._faults[replica], f"{point} is not armed on {replica}"
            gate.touch()
        try:
            yield
            for point, hits in before.items():
                # A client may get its answer before the point is reached, if its record was followed first.
                self.await_hit(replica, point, after=hits)
        finally:
            for gate in gates:
                gate.unlink()

    def hits(self, replica: str, point: str) -> int:
        """Return how often a fault has acted, by the journal, which outlives the process."""
        journal = self._folder / replica / "journal"
        lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
        return sum(line.split()[0] == point for line in lines)

    def await_hit(self, replica: str, point: str, *, after: int | None = None) -> None:
        """Wait until a fault has acted more often than `after` times; None: than when its gate was opened."""
        if after is None:
            after = self._hits_before.get((replica, point), 0)
        eventually(lambda: self.hits(replica, point) > after, what=f"{point} on {replica}")

    def _gate(self, replica: str, point: str) -> Path:
        return self._folder / replica / point


@dataclass(frozen=True, slots=True)
class Ending:
    """The answer that a client got about its transaction."""

    end: CallEnd
    csn: int | None = None
    error: TidelockError | None = None


class Attempt:
    """One transaction over both tables, written down in the history.

    Args:
        load: The load, which has the tables and the history.
        db: The client's session.
        key: The unique key of its rows.
        rows: The number of its rows in the first table; their sum with its two rows of the second is 0.
    """

    def __init__(self, load: Workload, db: Database, key: str, rows: int = ROWS[0]) -> None:
        self._load = load
        self._key = key
        self._rows = rows
        self._note("invoke", "write", rows=[rows, ROWS[1]])
        try:
            self._tx: Transaction = db.begin()
            assert self._tx.tid  # so it begins here, and has a home that can fail
        except TidelockError as error:
            self._note(CallEnd.FAIL, "write", error=repr(error))
            raise

    @property
    def tid(self) -> str:
        """Its tid."""
        return self._tx.tid

    def fill(self) -> None:
        """Insert the rows; errors as in `Transaction.insert`."""
        chosen = random.Random(self._key)
        numbers = [chosen.getrandbits(48) for _ in range(self._rows)]
        first, second = self._load.tables
        self._tx.insert(first, rows_of_a(self._key, numbers))
        halves = {"k": [self._key] * 2, "n": [1 - sum(numbers), -1], "half": ["left", "right"]}
        self._tx.insert(second, pa.table(halves, schema=SCHEMA_B))

    def finish(self, *, filled: bool = True, timeout_s: float | None = None) -> Ending:
        """Insert the missing rows, commit, and return the client's answer."""
        try:
            if not filled:
                self.fill()
        except TidelockError as error:
            with contextlib.suppress(TidelockError):
                self._tx.rollback()
            return self._ended(Ending(CallEnd.FAIL, error=error))
        self._note("invoke", "commit", tid=self.tid, snapshot=self._tx.snapshot_csn)
        return self.commit(timeout_s=timeout_s)

    def commit(self, *, timeout_s: float | None = None) -> Ending:
        """Request the commit, again if it was requested before, and return the client's answer."""
        try:
            result = self._tx.commit(timeout_s=timeout_s)
        except TidelockError as error:
            refused = isinstance(error, RefusedError) and not isinstance(error, CommitUnknownError)
            return self._ended(Ending(CallEnd.FAIL if refused else CallEnd.INFO, self._tx.csn, error))
        return self._ended(Ending(CallEnd.OK, result.csn))

    def _ended(self, ending: Ending) -> Ending:
        error = None if ending.error is None else repr(ending.error)
        self._note(ending.end, "write", tid=self.tid, csn=ending.csn, error=error)
        return ending

    def _note(self, kind: CallEnd | str, f: str, **fields: Any) -> None:
        self._load.recorder.note(kind, f, f"client {self._key}", key=self._key, **fields)


class Background:
    """A writer that runs one transaction after the other at one replica, during the `with` block."""

    def __init__(self, load: Workload, replica: str) -> None:
        self._load = load
        self._db = connect(load.cluster.url(replica), replica=replica, timeout_s=_PATIENCE_S)
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._committed = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="background writer")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_PATIENCE_S)
        self._db.close()
        assert not self._thread.is_alive(), "the background writer hangs"
        if self._error is not None:
            raise self._error

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Pause inside the block: no transaction of this writer runs meanwhile."""
        with self._turn:
            yield

    def more_commits(self, count: int = 2) -> None:
        """Wait for this number of further acknowledged commits."""
        goal = self._committed + count
        eventually(lambda: self._error or self._committed >= goal, what=f"{count} more commits")

    def _run(self) -> None:
        try:
            for number in itertools.count(1):
                with self._turn:
                    if self._stop.is_set():
                        return
                    attempt = Attempt(self._load, self._db, f"background-{number}")
                    self._committed += attempt.finish(filled=False).end is CallEnd.OK
                self._stop.wait(_WRITER_PAUSE_S)
        except BaseException as error:
            self._error = error


class Lab:
    """A running cluster with its gates, its background writer and its history; made by `laboratory`."""

    def __init__(self, load: Workload, gates: Gates, writer: Background, threads: ThreadPoolExecutor) -> None:
        self.cluster: LocalCluster = load.cluster
        self.gates = gates
        self.writer = writer
        self._load = load
        self._threads = threads
        self._numbers = itertools.count(1)

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Stop all other work inside the block; all commits are applied everywhere."""
        with self.writer.held():
            self.converged()
            yield

    @contextlib.contextmanager
    def transaction(self, home: str, *, rows: int = ROWS[0], filled: bool = True) -> Iterator[Attempt]:
        """Yield a transaction of a client that begins at `home` and may go on to other replicas.

        After a disk error a home lets transactions begin elsewhere until it can write again.
        """
        eventually(lambda: self._follows(home), what=f"{home} takes new transactions")
        with connect(self.cluster.url(home), timeout_s=_PATIENCE_S) as db:
            attempt = Attempt(self._load, db, f"test-{next(self._numbers)}", rows)
            assert attempt.tid.split("-")[1] == home
            if filled:
                attempt.fill()
            yield attempt

    def _follows(self, replica: str) -> bool:
        """Return whether a replica says that nothing holds it back."""
        rows = ask(self.cluster, replica, "/status")["replicas"]
        return any(row["id"] == replica and row["phase"] == "following" for row in rows)

    def beside(self, attempt: Attempt, *, filled: bool = True) -> Future[Ending]:
        """Let a client finish its transaction while the test goes on."""
        return self._threads.submit(attempt.finish, filled=filled)

    def await_death(self, replica: str) -> None:
        """Wait until an agent has died."""
        eventually(lambda: self.cluster.pid(replica) is None, what=f"the death of {replica}")

    def outcome(self, replica: str, tid: str) -> tuple[str, int | None]:
        """Return the outcome of a transaction by a replica, with the CSN if it is committed."""
        answer = ask(self.cluster, replica, f"/outcomes/{tid}")
        return answer["outcome"], answer.get("csn")

    def require_settled(self, attempt: Attempt, csn: int | None) -> None:
        """Require that a transaction has the same end on all replicas: committed at `csn`, or None = aborted.

        Its parts are visible on all replicas or unknown to all; the replicas agree; nothing is left over. All
        faults must be over.
        """
        with self.still():
            expected = ("aborted", None) if csn is None else ("committed", csn)
            found = {replica: self.outcome(replica, attempt.tid) for replica in self.cluster.replicas}
            assert found == dict.fromkeys(self.cluster.replicas, expected)
            for replica in self.cluster.replicas:
                eventually(
                    lambda replica=replica: self._parts(replica, attempt.tid) == _expected(csn),  # type: ignore[misc]
                    what=f"the parts of {attempt.tid} on {replica} as they must be ({expected})",
                )
            end = self.converged()
            lists = [self._list(replica, end) for replica in self.cluster.replicas]
            assert all(found == lists[0] for found in lists)
            for replica in self.cluster.replicas:
                _nothing_left(self.cluster.data_dir(replica))

    def converged(self) -> Csn:
        """Wait until all replicas serve and have applied the whole log; return its last CSN."""
        end = eventually(self.at_the_end, what="all replicas at the end of the log")
        assert end is not None
        return end

    def at_the_end(self) -> Csn | None:
        """Return the last CSN of the log, if all replicas serve and have applied it; else None."""
        ends: set[Csn] = set()
        for replica in self.cluster.replicas:
            try:
                status = ask(self.cluster, replica, "/status")
            except TidelockError:
                return None
            if status["state"] != "serving":
                return None
            ends.update((status["snapshot_csn"], status["end_csn"]))
        return ends.pop() if len(ends) == 1 else None

    def _parts(self, replica: str, tid: str) -> list[tuple[int | None, str]]:
        parts = ask(self.cluster, replica, f"/explain/{tid}")["parts"]
        return [(part["csn"], part["state"]) for part in parts]

    def _list(self, replica: str, csn: int) -> list[Any]:
        facts = ("part", "path", "rows", "length", "checksum")
        return [
            [part[name] for name in facts]
            for table in self._load.tables
            for part in ask(self.cluster, replica, f"/parts?csn={csn}&table={table}")
        ]


def _expected(csn: int | None) -> list[tuple[int | None, str]]:
    """Return the parts of a transaction that was committed at `csn`, or was aborted."""
    return [] if csn is None else [(csn, "held")] * PARTS


def _nothing_left(data_dir: Path) -> None:
    """Wait until a replica holds only data that the log needs; AssertionError lists the leftovers."""
    deadline = time.monotonic() + _LEFT_S
    while left := leftovers(data_dir) + undo_rows(data_dir):
        assert time.monotonic() < deadline, f"{data_dir}: {left}"
        time.sleep(INTERVAL_S)


def undo_rows(data_dir: Path) -> list[str]:
    """Return the undo rows of a data directory, except the one for the next pack, which has no file yet."""
    db = sqlite3.connect(f"file:{data_dir / 'catalog.db'}?mode=ro", uri=True)
    try:
        paths = [path for (path,) in db.execute("SELECT path FROM undo")]
    finally:
        db.close()
    reserved = [path for path in paths if path.startswith("packs/") and not (data_dir / path).exists()]
    return [f"undo {path}" for path in paths if path not in reserved[:1]]


@contextlib.contextmanager
def laboratory(
    factory: ClusterFactory,
    folder: Path,
    faults: Mapping[str, Mapping[str, str]],
    *,
    settings: Mapping[str, Any] | None = None,
    epoch_limit: int | None = None,
) -> Iterator[Lab]:
    """Run a lab; check its whole history at the end.

    Args:
        factory: Makes the cluster.
        folder: The folder for gates, journals and the history.
        faults: By replica: point and fault. Replicas are armed from their first start on.
        settings: More settings of the agents.
        epoch_limit: Records of an epoch.
    """
    gates = Gates(folder / "gates", faults)
    cluster = factory(
        settings=SETTINGS | dict(settings or {}),
        epoch_limit=epoch_limit,
        environment_of={replica: gates.environment(replica) for replica in faults},
    )
    with (
        Workload(cluster, folder, "points", writers=()) as load,
        ThreadPoolExecutor(thread_name_prefix="client") as threads,
        Background(load, BYSTANDER) as writer,
    ):
        lab = Lab(load, gates, writer, threads)
        writer.more_commits(1)
        yield lab
    for replica in cluster.replicas:
        cluster.start(replica)  # a test that failed may have left a dead replica
    verify(load, commits=1)


def points(steps: Sequence[str]) -> list[str]:
    """Return the two points of each step."""
    return [f"{step}.{side}" for step in steps for side in ("before", "after")]
