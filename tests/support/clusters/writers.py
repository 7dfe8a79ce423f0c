"""Clients that write all the time while a test changes the cluster, and note what was acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from tests.support.waiting import eventually
from tidelock.client import connect
from tidelock.cluster import LocalCluster
from tidelock.errors import TidelockError

#: The table `t`, into which writers write.
SCHEMA: Final = pa.schema([pa.field("k", pa.int64(), nullable=False)])
#: Keys of one writer; those of the next begin behind them.
_KEYS: Final = 1_000_000


def row(key: int) -> pa.Table:
    """Return one row."""
    return pa.table({"k": [key]}, schema=SCHEMA)


class Writers:
    """Clients that insert one row after the other, and note what was acknowledged and what was refused.

    Args:
        urls: The replicas.
        number: The number of clients.
        first: The key of the first row.
        pause_s: Pause of a client after a row.
    """

    def __init__(self, urls: Sequence[str], number: int, *, first: int = 0, pause_s: float = 0.0) -> None:
        self.acknowledged: list[int] = []
        self.refused: list[TidelockError] = []
        self._urls, self._pause_s, self._ended = list(urls), pause_s, threading.Event()
        begins = [first + one * _KEYS for one in range(number)]
        self._threads = [threading.Thread(target=self._write, args=(begin,)) for begin in begins]

    def _write(self, begin: int) -> None:
        with connect(self._urls) as db:
            for key in range(begin, begin + _KEYS):
                if self._ended.wait(self._pause_s):
                    return
                try:
                    db.insert("t", row(key))
                except TidelockError as error:
                    self.refused.append(error)
                else:
                    self.acknowledged.append(key)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write for the duration of a ``with`` block."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()

    def go_on(self, rows: int = 10) -> None:
        """Return when more rows than this were acknowledged from now on."""
        count = len(self.acknowledged)
        eventually(lambda: len(self.acknowledged) > count + rows, what="more rows")


def rows_at(local: LocalCluster, replica: str) -> set[int]:
    """Return the keys that a replica shows."""
    with local.connect(replica) as db, db.snapshot() as snap:
        return set(snap.read("t").column("k").to_pylist())
