"""Queries outside of a snapshot that the caller keeps: each gets one of its own, until its rows have come."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tidelock.client.agents.connection import Connection
from tidelock.client.agents.members import KnownMember
from tidelock.client.reads.scan import RowReader
from tidelock.client.reads.snapshot import Snapshot, open_query
from tidelock.client.reads.stream import BatchStream
from tidelock.errors import SnapshotTooOldError


class WithoutPin(RowReader):
    """Queries at a CSN that cannot be pinned: those of tables that keep a longer history are answered.

    Args:
        connection: The replicas.
        csn: The CSN.
    """

    def __init__(self, connection: Connection, csn: int) -> None:
        self._connection = connection
        self._csn = csn

    def stream(self, request: dict[str, Any]) -> BatchStream:
        """Run a query (see `scan.RowReader`)."""
        return self._connection.members.ask(lambda member: self._open(member, request))

    def collect(self, request: dict[str, Any]) -> pa.Table:
        """Run a query and return all its rows."""
        return self._connection.members.ask(lambda member: self._open(member, request).read_all())

    def _open(self, member: KnownMember, request: dict[str, Any]) -> BatchStream:
        return open_query(self._connection, member, request, self._csn)


class SnapshotEach(RowReader):
    """Opens a snapshot for each query, and closes it at the end of the rows.

    Args:
        opened: Returns a new snapshot.
        otherwise: What answers where the history of all tables is not kept; None: nothing does.
    """

    def __init__(self, opened: Callable[[], Snapshot], otherwise: WithoutPin | None) -> None:
        self._opened = opened
        self._otherwise = otherwise

    def stream(self, request: dict[str, Any]) -> BatchStream:
        """Run a query (see `scan.RowReader`); the snapshot stays until the stream ends or is closed."""
        snapshot = self._reader()
        if isinstance(snapshot, WithoutPin):
            return snapshot.stream(request)
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
        snapshot = self._reader()
        if isinstance(snapshot, WithoutPin):
            return snapshot.collect(request)
        with snapshot:
            return snapshot.collect(request)

    def _reader(self) -> Snapshot | WithoutPin:
        try:
            return self._opened()
        except SnapshotTooOldError:
            if self._otherwise is None:
                raise
            return self._otherwise
