"""The largest pause of an agent whose catalog is large, while it answers lists and commits.

A client asks for `/healthz` without end; the longest wait for an answer is the largest pause of the event
loop as others notice it. The rows of parts and tables in the catalog are copies of one: all these parts are
one file, which nobody reads.
"""

from __future__ import annotations

import contextlib
import http.client
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.tools.crowd import crowd
from bench.tools.workload import SCHEMA, batch
from tidelock.cluster import LocalCluster
from workloads.agents import get

_TABLE: Final = "default.pauses"
_OTHER: Final = "default.beside"
_TURNS: Final = 5
#: Partitions of the large table: few enough that the list is long, many enough that each is of a usual size.
_PARTITIONS: Final = 100


def run(folder: Path, parts: int, tables: int, commits: int) -> list[dict[str, Any]]:
    """Measure on a cluster of one replica with so many parts in one table, and so many tables.

    Args:
        folder: An empty folder.
        parts: Parts of the large table.
        tables: Number of tables.
        commits: Commits that arrive at once.
    """
    # Nothing merges the copies meanwhile. Those that carry the commits are transactions, too.
    settings = {"TIDELOCK_COMPACTION": "false", "TIDELOCK_TRANSACTIONS_MAX": str(2 * commits)}
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
                work = partial(_send, send, commits)
                return [*found, _measure(api, f"{commits} commits at once", work, turns=1)]


def _send(send: Callable[[], dict[int, int]], count: int) -> None:
    if (answers := send()) != {HTTPStatus.OK: count}:
        raise RuntimeError(f"expected {count} commits, found the answers {answers}")


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
        _copy(db, "parts", ("table_name", _TABLE), changed, parts - 1)
        _copy(db, "tables", ("name", _OTHER), {"name": f"'{_OTHER}' || n"}, tables - 2)


def _copy(
    db: sqlite3.Connection, rows: str, like: tuple[str, str], changed: dict[str, str], count: int
) -> None:
    """Copy the row with a value in a column so many times, with the changed columns by their number n."""
    columns = [name for _, name, *_ in db.execute(f"pragma table_info({rows})")]
    copied = ", ".join(changed.get(name, name) for name in columns)
    sql = f"""
        INSERT INTO {rows} WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers
        WHERE n < ?) SELECT {copied} FROM numbers, (SELECT * FROM {rows} WHERE {like[0]} = ?)
    """
    db.execute(sql, (count, like[1]))
