"""Queries outside of a snapshot that the caller keeps: each gets one of its own, until its rows have come."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tidelock.client.reads.scan import RowReader
from tidelock.client.reads.snapshot import Snapshot
from tidelock.client.reads.stream import BatchStream


class SnapshotEach(RowReader):
    """Opens a snapshot for each query, and closes it at the end of the rows.

    Args:
        opened: Returns a new snapshot.
    """

    def __init__(self, opened: Callable[[], Snapshot]) -> None:
        self._opened = opened

    def stream(self, request: dict[str, Any]) -> BatchStream:
        """Run a query (see `scan.RowReader`); the snapshot stays until the stream ends or is closed."""
        snapshot = self._opened()
        try:
            stream = snapshot.stream(request)
        except BaseException:
            snapshot.close()
            raise
        stream.at_end(snapshot.close)
        # The pin of a stream that nobody has closed ends by itself: collecting memory sends nothing.
        weakref.finalize(stream, snapshot.leave).atexit = False
        return stream

    def collect(self, request: dict[str, Any]) -> pa.Table:
        """Run a query and return all its rows."""
        with self._opened() as snapshot:
            return snapshot.collect(request)
