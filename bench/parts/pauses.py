"""The largest pause of an agent whose catalog is large, while it answers lists and commits.

A client asks for `/healthz` without end; the longest wait for an answer is the largest pause of the event
loop as others notice it. The rows of parts and tables in the catalog are copies of one: all these parts are
one file, which nobody reads.

For commits that wait, ZooKeeper's process is stopped by a signal: its connections stay, and nothing is
answered. All that could end meanwhile (sessions, requests, commits, reserved tids) may take longer than that,
so that the agent takes commits in until they are all there.
"""

from __future__ import annotations

import contextlib
import http.client
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.tools.crowd import Answers, crowd
from bench.tools.machine import zookeeper_process
from bench.tools.part_files import copy_rows
from bench.tools.workload import SCHEMA, batch
from tidelock import processes, zookeeper
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from workloads.agents import get

_TABLE: Final = "default.pauses"
_OTHER: Final = "default.beside"
_TURNS: Final = 5
#: Partitions of the large table: few enough that the list is long, many enough that each is of a usual size.
_PARTITIONS: Final = 100
#: From one commit that will wait to the next: slow enough that the agent takes each in before the next one
#: comes, so that what is seen is the cost of those that wait. In seconds.
_INTERVAL_S: Final = 1 / 250
#: How long all of them wait, and how often the agent is asked for their number meanwhile. In seconds.
_WAITING_S: Final = 2.0
_LOOK_S: Final = 0.5
#: ZooKeeper is held for as long as commits come and wait. No session, request or commit may end meanwhile.
_HELD_MAX_S: Final = 600
_BOUNDS: Final = ("SESSION_TIMEOUT_S", "REQUEST_TIMEOUT_S", "COMMIT_TIMEOUT_S", "TIDS_RESERVED_S")


def run(folder: Path, parts: int, tables: int, commits: int) -> list[dict[str, Any]]:
    """Measure on a cluster of one replica with so many parts in one table, and so many tables.

    Args:
        folder: An empty folder.
        parts: Parts of the large table.
        tables: Number of tables.
        commits: Commits that arrive at once, and commits that wait.
    """
    settings = {
        "TIDELOCK_COMPACTION": "false",  # nothing merges the copies meanwhile
        "TIDELOCK_TRANSACTIONS_MAX": str(2 * commits),  # those that carry the commits are transactions, too
    } | {f"TIDELOCK_{bound}": str(_HELD_MAX_S) for bound in _BOUNDS}
    # The cluster takes the ZooKeeper that is in its folder.
    zookeeper.create(
        folder / "zookeeper", options=zookeeper.Options(session_timeout_max_ms=_HELD_MAX_S * 1000)
    )
    with LocalCluster.create(folder, replicas=1, environment=settings) as cluster:
        [replica] = cluster.replicas
        with cluster.connect() as db:
            db.create_table(_TABLE, SCHEMA, partition_by=["year"])
            db.create_table(_OTHER, SCHEMA, partition_by=["year"])
            db.insert(_TABLE, batch(0, 0))
        cluster.stop(replica)
        _more(cluster.data_dir(replica), parts=parts, tables=tables)
        cluster.start(replica)
        api = cluster.url(replica)
        with cluster.connect() as db:
            works: dict[str, Callable[[], object]] = {
                "nothing": lambda: time.sleep(0.5),
                "status": db.status,
                # As bytes: to decode them would hold up the thread that looks at the agent.
                "list of parts": lambda: get(f"{api}/api/v1/parts?table={_TABLE}"),
                "list of tables": lambda: get(f"{api}/api/v1/tables"),
                "one table": lambda: db.table(_TABLE),
                "commit": lambda: db.insert(_OTHER, batch(0, 0)),
            }
            found = [_measure(api, what, work) for what, work in works.items()]
            with crowd(api, _OTHER, commits) as send:
                found += _measure_waiting(cluster, send, commits)
                at_once = f"{commits:,} commits at once"
                found.append(_measure(api, at_once, lambda: _take(send(0), commits), turns=1))
            return found


def _measure_waiting(
    cluster: LocalCluster, send: Callable[[float], Future[Answers]], count: int
) -> list[dict[str, Any]]:
    """Measure while commits come to an agent whose ZooKeeper is held, while all wait, and afterwards.

    RuntimeError if a commit was acknowledged before ZooKeeper went on, or if the table has not all of them.
    """
    [api] = cluster.urls
    with cluster.connect() as db:
        before = _rows(db)
        with _held_zookeeper(cluster):
            answers = send(_INTERVAL_S)

            def come() -> None:
                while db.status()["open_transactions"] < count and not answers.done():
                    time.sleep(_LOOK_S)

            found = [
                _measure(api, f"{count:,} commits come while ZooKeeper is held", come, turns=1),
                _measure(api, f"{count:,} commits wait for it", lambda: time.sleep(_WAITING_S), turns=1),
            ]
            if answers.done():
                raise RuntimeError(f"ZooKeeper was held, and commits got the answers {answers.result()}")
        decided = partial(_take, answers, count)
        found.append(_measure(api, f"{count:,} commits are decided when it goes on", decided, turns=1))
        if (present := _rows(db) - before) != count:
            raise RuntimeError(f"{count} rows were acknowledged, {present} are there")
    return found


def _rows(db: Database) -> int:
    return int(db.table(_OTHER)["rows"])


@contextlib.contextmanager
def _held_zookeeper(cluster: LocalCluster) -> Iterator[None]:
    """Stop the cluster's ZooKeeper: connections stay, and nothing is answered before the block ends."""
    process = zookeeper_process(cluster)
    processes.send(process, signal.SIGSTOP)
    try:
        yield
    finally:
        processes.send(process, signal.SIGCONT)


def _take(answers: Future[Answers], count: int) -> None:
    if (found := answers.result()) != {HTTPStatus.OK: count}:
        raise RuntimeError(f"expected {count} commits, found the answers {found}")


def _measure(api: str, what: str, work: Callable[[], object], *, turns: int = _TURNS) -> dict[str, Any]:
    taken = []
    with _probe(api) as waits:
        for _ in range(turns):
            begun = time.monotonic()
            work()
            taken.append(time.monotonic() - begun)
    return {
        "what": what,
        "answer_ms": round(min(taken) * 1000, 1),
        "pause_ms": round(max(waits) * 1000, 1),
    }


@contextlib.contextmanager
def _probe(api: str) -> Iterator[list[float]]:
    """Ask for the health of an agent in a thread, and note how long each answer takes."""
    waits: list[float] = []
    over = threading.Event()

    def look() -> None:
        connection = http.client.HTTPConnection(urlsplit(api).netloc)
        with contextlib.closing(connection):
            while not over.wait(0.002):
                begun = time.monotonic()
                connection.request("GET", "/healthz")
                connection.getresponse().read()
                waits.append(time.monotonic() - begun)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()


def _more(data_dir: Path, *, parts: int, tables: int) -> None:
    """Copy the one part of the large table, and the definition of the other one; the agent does not run."""
    with contextlib.closing(sqlite3.connect(data_dir / "catalog.db")) as db, db:
        changed = {"part": "'r1-1-' || (1000000 + n)", "path": f"'year=' || (n % {_PARTITIONS})"}
        copy_rows(db, "parts", ("table_name", _TABLE), changed, parts - 1)
        copy_rows(db, "tables", ("name", _OTHER), {"name": f"'{_OTHER}' || n"}, tables - 2)
