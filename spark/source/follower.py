"""Follows a table for one streaming query: what is new, what a batch takes, and what is kept readable for it.

It lives in the one Python process beside the driver that Spark keeps for the life of a query, with its
connection and its pin. An idle query costs one request in `WAIT_S`, or in `PAUSE_S` where others commit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tidelock.client import Database, Snapshot, connect
from tidelock.client.feed import ChangePage, ChangeSet
from tidelock.errors import SnapshotTooOldError
from tidelock.spark.source.options import Begin, Target
from tidelock.spark.source.stream_offsets import (
    Limits,
    Position,
    Removals,
    admit,
    in_order,
    readable,
    removal_error,
)
from tidelock.spark.source.stream_options import ReadStreamOptions

#: How long an agent is asked to wait for a commit, in seconds; it delays the other sources of a query too.
WAIT_S: Final = 0.5
#: Between two questions, where commits to other tables end the waiting.
PAUSE_S: Final = 0.05
#: The pin follows what is read, with at least this time between two writes to ZooKeeper.
PIN_INTERVAL_S: Final = 20.0
#: A query without new rows moves its checkpoint after this time, by an empty batch: what it may have to ask
#: for after a restart is then never older.
MOVE_INTERVAL_S: Final = 600.0
#: How long the list of replicas counts as new.
STATUS_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Batch:
    """What lies between two positions.

    Attributes:
        csn: Where it ends.
        first: Of the rows that a query begins with: parts as agents list them, at this CSN.
        sets: Of what came later: the commits.
    """

    csn: int
    first: Sequence[Mapping[str, Any]] = ()
    sets: Sequence[ChangeSet] = ()


class TableTailer:
    """See the module; for one thread.

    Whatever is called may raise:
        SnapshotTooOldError: What is to be read next is not kept any more.
        UnknownTableError, NoSuchCsnError: The checkpoint or an option does not fit the cluster.
        StandbyError, UnavailableError: No replica can answer.
    """

    def __init__(self, options: ReadStreamOptions) -> None:
        self._options = options
        self._table = options.target.table
        self._removals = _removals(options)
        self._db = _connected(options.target, failover=options.failover)
        self._pin: Snapshot | None = None
        self._pinned_at: float | None = None
        self._status: tuple[float, Mapping[str, Any]] | None = None
        self._bound: int | None = None
        #: From this position on there is nothing to be read up to this CSN.
        self._quiet: tuple[Position, int] | None = None
        self._asked_at = -PAUSE_S
        self._moved_at = time.monotonic()
        self._first: tuple[int, list[Mapping[str, Any]]] | None = None
        self._planned: tuple[Position, Position, Batch] | None = None

    def close(self) -> None:
        """Give the pin and the connection back."""
        if self._pin is not None:
            self._pin.close()
        self._db.close()

    def status(self) -> Mapping[str, Any]:
        """Return how the replicas are, or were a moment ago."""
        now = time.monotonic()
        if self._status is None or now - self._status[0] > STATUS_S:
            self._status = now, self._db.status()
        return self._status[1]

    def definition(self) -> Mapping[str, Any]:
        """Return the table."""
        return self._db.table(self._table)

    def stop_at_newest(self) -> None:
        """Behave from now on as if nothing were committed any more."""
        self._bound = int(self._db.status()["end_csn"])

    def begin(self) -> Position:
        """Return where a new query begins."""
        options = self._options
        if options.csn is not None:
            return Position(options.csn)
        csn = self._bound if options.at_ms is None else None
        self._hold(self._db.snapshot(csn, at=options.at_ms, lease=options.lease_s))
        assert self._pin is not None
        found = self._pin.csn
        whole = options.at_ms is None and options.begin is Begin.EARLIEST
        return Position(found, 0 if whole and self._first_parts(found) else None)

    def advance(self, start: Position, limits: Limits) -> Position:
        """Return how far the next batch goes: to `start` if there is nothing to be read.

        Raises:
            BadRequestError: The next commit removes rows, and that cannot be told.
        """
        self._keep(start.csn)
        if start.parts is None:
            end, batch = self._advance(start, limits)
        else:
            end, batch = self._advance_first(start.csn, start.parts, limits)
        if end != start:
            self._moved_at = time.monotonic()
            self._planned = start, end, batch
        return end

    def plan(self, start: Position, end: Position) -> Batch:
        """Return what lies between two positions: the same whenever it is asked.

        Raises:
            BadRequestError: A commit removes rows, and that cannot be told.
        """
        if self._planned is not None and self._planned[:2] == (start, end):
            return self._planned[2]
        self._keep(start.csn)
        if start.parts is not None:
            return Batch(start.csn, first=self._first_parts(start.csn)[start.parts : end.parts])
        sets, blocking = readable(self._db.changes(self._table, start.csn, end.csn).sets(), self._removals)
        if blocking is not None:
            raise removal_error(blocking, self._table)
        return Batch(end.csn, sets=sets)

    def release(self, position: Position) -> None:
        """What comes before a position is not needed any more."""
        self._move(position.csn)

    @property
    def newest(self) -> int | None:
        """The newest CSN that is known to be read, or to hold nothing to be read."""
        return self._db.seen_csn or None

    # -- the rows that are there when a query begins --------------------------------------------------------

    def _advance_first(self, csn: int, done: int, limits: Limits) -> tuple[Position, Batch]:
        parts = self._first_parts(csn)
        more = admit([int(part["length"]) for part in parts[done:]], limits)
        end = Position(csn, done + more if done + more < len(parts) else None)
        return end, Batch(csn, first=parts[done : done + more])

    def _first_parts(self, csn: int) -> list[Mapping[str, Any]]:
        if self._first is None or self._first[0] != csn:
            with self._db.snapshot(csn) as snapshot:
                self._first = csn, in_order(snapshot.parts(self._table))
        return self._first[1]

    # -- what is committed later ----------------------------------------------------------------------------

    def _advance(self, start: Position, limits: Limits) -> tuple[Position, Batch]:
        after = self._quiet[1] if self._quiet is not None and self._quiet[0] == start else start.csn
        found: list[ChangeSet] = []
        while self._bound is None or after < self._bound:
            page = self._page(after, limits, waits=not found)
            sets, blocking = readable(page.sets, self._removals)
            found += sets
            if blocking is not None:
                if not found:
                    raise removal_error(blocking, self._table)
                after = found[-1].csn
                break
            after = page.to
            if page.complete or (found and limits != Limits()):
                break
        if found:
            return Position(after), Batch(after, sets=found)
        self._quiet = start, after
        self._move(after)
        if after > start.csn and time.monotonic() - self._moved_at > MOVE_INTERVAL_S:
            return Position(after), Batch(after)
        return start, Batch(start.csn)

    def _page(self, after: int, limits: Limits, *, waits: bool) -> ChangePage:
        if self._bound is not None or not waits:
            wait_s = None
        else:
            time.sleep(max(0.0, self._asked_at + PAUSE_S - time.monotonic()))
            wait_s = min(WAIT_S, float(self.status()["wait_bound_s"]))
        page = self._db.changes(self._table, after, self._bound).page(
            files_max=limits.files_max, bytes_max=limits.bytes_max, wait_s=wait_s
        )
        self._asked_at = time.monotonic()
        return page

    # -- what is kept readable ------------------------------------------------------------------------------

    def _keep(self, csn: int) -> None:
        """Pin where a query goes on, once."""
        if self._pinned_at is None:
            self._pinned_at = time.monotonic()
            # A table may keep its history for longer than the others; if not, the next answer says so.
            with suppress(SnapshotTooOldError):
                self._hold(self._db.snapshot(csn, lease=self._options.lease_s))

    def _move(self, csn: int) -> None:
        if self._pin is None or self._pinned_at is None or csn <= self._pin.csn:
            return
        if time.monotonic() - self._pinned_at >= PIN_INTERVAL_S:
            self._hold(self._db.snapshot(csn, lease=self._options.lease_s))

    def _hold(self, snapshot: Snapshot) -> None:
        before, self._pin, self._pinned_at = self._pin, snapshot, time.monotonic()
        if before is not None:
            before.close()


def _removals(options: ReadStreamOptions) -> Removals:
    if options.change_feed:
        return Removals.TOLD
    return Removals.SKIPPED if options.skip_changes else Removals.REFUSED


def _connected(target: Target, *, failover: bool) -> Database:
    """Return a client that asks the target's replica first, or alone."""
    replica = target.replica
    if replica is None or not failover:
        return connect(list(target.urls), replica=replica, token=target.token)
    with connect(list(target.urls), token=target.token) as db:
        rows = {row["id"]: row for row in db.status()["replicas"]}
    if replica not in rows or not rows[replica].get("api"):
        return connect(list(target.urls), replica=replica, token=target.token)  # says which there are
    return connect([f"{target.scheme}://{rows[replica]['api']}", *target.urls], token=target.token)
