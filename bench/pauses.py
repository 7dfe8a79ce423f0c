"""The largest pause of an agent whose catalog is large, while it answers lists and commits.

A client asks for `/healthz` without end; the longest wait for an answer is the largest pause of the event
loop as others notice it. The rows of parts and tables are copies of one, as those of `start`.
"""

from __future__ import annotations

import contextlib
import http.client
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.part_files import fill
from bench.workload import SCHEMA, batch
from tidelock.cluster import LocalCluster
from workloads.agents import get

_TABLE: Final = "default.pauses"
_OTHER: Final = "default.beside"
_TURNS: Final = 5


def run(folder: Path, parts: int, tables: int) -> list[dict[str, Any]]:
    """Measure on a cluster of one replica with so many parts in one table, and so many tables."""
    # Small parts become files of their own, and nothing merges them meanwhile.
    settings = {"TIDELOCK_INLINE_PART_BYTES_MAX": "1", "TIDELOCK_COMPACTION": "false"}
    with LocalCluster.create(folder, replicas=1, environment=settings) as cluster:
        [replica] = cluster.replicas
        with cluster.connect() as db:
            db.create_table(_TABLE, SCHEMA, partition_by=["year"])
            db.create_table(_OTHER, SCHEMA, partition_by=["year"])
            db.insert(_TABLE, batch(0, 0))
        cluster.stop(replica)
        fill(cluster.data_dir(replica), _TABLE, replica, parts)
        _more_tables(cluster.data_dir(replica), tables)
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
            return [_measure(api, what, work) for what, work in works.items()]


def _measure(api: str, what: str, work: Callable[[], object]) -> dict[str, Any]:
    taken = []
    with _probe(api) as waits:
        for _ in range(_TURNS):
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


def _more_tables(data_dir: Path, count: int) -> None:
    """Copy the definition of one table until there are so many; the agent does not run."""
    with contextlib.closing(sqlite3.connect(data_dir / "catalog.db")) as db, db:
        columns = [name for _, name, *_ in db.execute("pragma table_info(tables)")]
        copied = ", ".join(f"'{_OTHER}' || n" if name == "name" else name for name in columns)
        sql = f"""
            INSERT INTO tables WITH RECURSIVE numbers (n) AS (SELECT 3 UNION ALL SELECT n + 1 FROM numbers
            WHERE n < ?) SELECT {copied} FROM numbers, (SELECT * FROM tables WHERE name = ?)
        """
        db.execute(sql, (count, _OTHER))
