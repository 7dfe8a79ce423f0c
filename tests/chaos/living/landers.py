"""Clients that land rows beside a load, and the check that each acknowledged row is there once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pyarrow as pa

from tests.support.waiting import eventually
from tidelock.client import Database, connect
from tidelock.cluster import LocalCluster
from tidelock.errors import TableExistsError, TidelockError

TABLE: Final = "landed"
SCHEMA: Final = pa.schema([("lander", pa.int64()), ("n", pa.int64())])
_PAUSE_S: Final = 0.02


class Landers:
    """Clients, each of which lands rows with numbers of its own, at any agent.

    Args:
        cluster: The cluster, which has the table from here on.
        count: Number of clients.
    """

    def __init__(self, cluster: LocalCluster, count: int) -> None:
        self._cluster, self._count = cluster, count
        self.acknowledged: set[tuple[int, int]] = set()
        #: Rows whose answer was an error: they may be there.
        self.doubtful: set[tuple[int, int]] = set()
        self._next = 0
        self._lock = threading.Lock()
        with cluster.connect() as db, suppress(TableExistsError):
            db.create_table(TABLE, SCHEMA, properties={"landing": "on"})

    @contextmanager
    def landing(self) -> Iterator[None]:
        """Land rows inside the block."""
        over = threading.Event()
        threads = [threading.Thread(target=self._land, args=(which, over)) for which in range(self._count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _land(self, which: int, over: threading.Event) -> None:
        db: Database | None = None
        while not over.wait(_PAUSE_S):
            with self._lock:
                self._next += 1
                row = (which, self._next)
            try:
                db = db or connect(self._cluster.urls, timeout_s=10)
                db.land(TABLE, pa.table({"lander": [row[0]], "n": [row[1]]}, schema=SCHEMA))
            except TidelockError:
                self.doubtful.add(row)
            else:
                self.acknowledged.add(row)

    def verify(self, least: int) -> None:
        """Wait until all acknowledged rows are visible, and check that no row is there twice.

        Args:
            least: So many rows at least were acknowledged.
        """
        there: Counter[tuple[int, int]] = Counter()

        def all_there() -> bool:
            with self._cluster.connect() as db:
                found = db.read(TABLE)
            rows = zip(found["lander"].to_pylist(), found["n"].to_pylist(), strict=True)
            there.clear()
            there.update(rows)
            return self.acknowledged <= there.keys()

        assert len(self.acknowledged) >= least
        eventually(all_there, what="the rows that have landed")
        assert {row for row, count in there.items() if count > 1} == set()
        assert there.keys() <= self.acknowledged | self.doubtful
