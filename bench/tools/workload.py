"""The workload of clients: 100 rows for each of two tables, by processes that use all replicas.

The same rows go to the other table formats, so that all of them encode the same.
"""

from __future__ import annotations

import functools
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any, Final, TypeVar

import pyarrow as pa

import tidelock
from bench.tools.ways import Way
from tidelock.cluster import LocalCluster

ROWS: Final = 100
TABLES: Final = ("bench_orders", "bench_lines")
SCHEMA: Final = pa.schema(
    [
        ("key", pa.int64()),
        ("year", pa.int32()),
        ("status", pa.string()),
        ("price", pa.decimal128(15, 2)),
        ("day", pa.date32()),
        ("comment", pa.string()),
    ]
)
#: How long the processes of a run may take to start, and to tell what they have found.
START_TIMEOUT_S: Final = 180.0
#: In the place of a CSN: a peer's client has given this commit up.
GAVE_UP: Final = -1
_POLL_S: Final = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClientPace:
    """How a client works.

    Attributes:
        warm_s: Before the window that is measured.
        run_s: The window.
        interval_s: From the begin of one commit to that of the next; 0 = as fast as it can.
    """

    warm_s: float
    run_s: float
    interval_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CommitTiming:
    """One commit of a client.

    Attributes:
        at: When it was acknowledged, by the machine's monotonic clock.
        took_s: From the begin of the transaction (of the first try) to there.
        csn: Its CSN; 0 for a peer, which has none, or `GAVE_UP`.
        failed: Tries before it that ended with an error.
    """

    at: float
    took_s: float
    csn: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class ClientCommits:
    """The commits of clients, those of the warm-up included, and the CPU seconds that they took."""

    done: list[CommitTiming]
    cpu_s: float

    @property
    def cpu_ms_per_commit(self) -> float:
        """The clients' own CPU ms per commit."""
        return round(self.cpu_s * 1000 / max(1, len(self.done)), 2)


#: Commits the n-th batch; returns its CSN and how many tries had failed.
Commit = Callable[[int], tuple[int, int]]
#: Makes the commits of a client, given its number; called in the client's process.
Open = Callable[[int], Commit]


@functools.cache
def _template() -> pa.Table:
    """Everything but the keys, made once: clients share the machine with what is measured."""
    return pa.table(
        {
            "key": list(range(ROWS)),
            "year": [1995] * ROWS,
            "status": ["O", "F"] * (ROWS // 2),
            "price": pa.array(range(100, 100 + ROWS), pa.int32()).cast(pa.decimal128(15, 2)),
            "day": pa.array(range(9000, 9000 + ROWS), pa.int32()).cast(pa.date32()),
            "comment": [
                f"row {number} of the benchmark, not to be compressed away" for number in range(ROWS)
            ],
        },
        schema=SCHEMA,
    )


def batch(client: int, number: int) -> pa.Table:
    """Return the rows of one insert; no two have a key in common."""
    first = (client << 40) + number * ROWS
    return _template().set_column(0, SCHEMA.field(0), pa.array(range(first, first + ROWS), pa.int64()))


def open_tidelock(number: int, urls: Sequence[str], replicas: Sequence[str], way: Way = Way.WRITE) -> Commit:
    """Return the commits of a client of Tidelock, at its replica."""
    home = number % len(replicas)
    db = tidelock.connect(urls[home], replica=replicas[home])

    def write(rows: pa.Table) -> int:
        return db.write(dict.fromkeys(TABLES, rows)).csn or 0

    def statements(rows: pa.Table) -> int:
        with db.begin() as tx:
            assert tx.tid  # so it begins here, and each statement is a request
            for table in TABLES:
                tx.insert(table, rows)
        return tx.csn or 0

    commit = {Way.WRITE: write, Way.STATEMENTS: statements}[way]
    commit(batch(number, 0).slice(0, 0))  # loads what a client loads at first use, before the clock runs
    return lambda count: (commit(batch(number, count)), 0)


def clients_of(cluster: LocalCluster, way: Way = Way.WRITE) -> Open:
    """Return how the clients of a cluster are opened."""
    return functools.partial(open_tidelock, urls=cluster.urls, replicas=cluster.replicas, way=way)


class BenchClients:
    """Client processes, ready to begin at one moment; a run ends with `results`.

    Args:
        opener: Makes a client's commits.
        count: Processes.
        pace: How they work.
        preload: Modules that the processes share.
    """

    def __init__(self, opener: Open, count: int, pace: ClientPace, preload: Sequence[str] = ()) -> None:
        context: Any = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bench.tools.workload", "tidelock.client", *preload])
        self.count, self.pace = count, pace
        self._ready: Queue[str] = context.Queue()
        self._start: Queue[float] = context.Queue()
        self._results: Queue[ClientCommits | str] = context.Queue()
        channels = (self._ready, self._start, self._results)
        self._processes = [
            context.Process(target=_client, args=(opener, number, count, pace, *channels), daemon=True)
            for number in range(count)
        ]
        for process in self._processes:
            process.start()

    def begin(self) -> float:
        """Let all begin at once when all are ready; returns when the measured window opens.

        RuntimeError with what a client has failed with.
        """
        for _ in self._processes:
            if problem := self._take(self._ready, START_TIMEOUT_S):
                raise RuntimeError(f"a client failed: {problem}")
        zero = time.monotonic() + self.pace.warm_s
        for _ in self._processes:
            self._start.put(zero)
        return zero

    def results(self) -> ClientCommits:
        """Wait for the end of the run; RuntimeError with what a client has failed with."""
        done: list[CommitTiming] = []
        cpu_s = 0.0
        for _ in self._processes:
            found = self._take(self._results, self.pace.warm_s + self.pace.run_s + START_TIMEOUT_S)
            if isinstance(found, str):
                raise RuntimeError(f"a client failed: {found}")  # noqa: TRY004 - no wrong type
            done += found.done
            cpu_s += found.cpu_s
        for process in self._processes:
            process.join()
        return ClientCommits(done, cpu_s)

    def _take(self, queue: Queue[T], timeout_s: float) -> T:
        """Take the next word of a client; RuntimeError when there is none in time, or one died in silence."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                return queue.get(timeout=_POLL_S)
            except Empty:
                if any(process.exitcode for process in self._processes) or time.monotonic() > until:
                    raise RuntimeError("a client has ended or hangs, without an answer") from None


def _client(
    opener: Open,
    number: int,
    count: int,
    pace: ClientPace,
    ready: Queue[str],
    start: Queue[float],
    results: Queue[ClientCommits | str],
) -> None:
    try:
        commit = opener(number)
    except Exception as error:
        ready.put(f"{type(error).__name__}: {error}")
        raise
    ready.put("")
    try:
        results.put(_commits(commit, start.get(timeout=START_TIMEOUT_S), pace, number / count))
    except Exception as error:
        results.put(f"{type(error).__name__}: {error}")
        raise


def _commits(commit: Commit, zero: float, pace: ClientPace, phase: float) -> ClientCommits:
    done: list[CommitTiming] = []
    cpu_s = time.process_time()
    due = zero - pace.warm_s + phase * pace.interval_s
    while (begun := time.monotonic()) < zero + pace.run_s:
        if pace.interval_s:
            time.sleep(max(0.0, due - begun))
            due += pace.interval_s
            begun = time.monotonic()
        csn, failed = commit(len(done))
        now = time.monotonic()
        done.append(CommitTiming(now, now - begun, csn, failed))
    return ClientCommits(done, time.process_time() - cpu_s)
