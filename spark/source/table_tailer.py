"""The tailer of a table for one streaming query: it finds new commits, plans batches and pins unread history.

It runs in the one Python process beside the driver that Spark keeps until the query ends, and owns a
connection and a pin. An idle query costs one request per `WAIT_S`, or per `PAUSE_S` while other tables get
commits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tidelock.client import Database, Snapshot, connect
from tidelock.client.reads.feed import ChangePage, ChangeSet
from tidelock.errors import SnapshotTooOldError
from tidelock.spark.source.options import Begin, TableTarget
from tidelock.spark.source.stream_offsets import (
    BatchLimits,
    Position,
    RemovalPolicy,
    admit,
    in_order,
    readable,
    removal_error,
)
from tidelock.spark.source.stream_options import ReadStreamOptions
from tidelock.wire.rows import Fields

#: Time that an agent waits for a commit before it answers, in seconds. The query's other sources wait too.
WAIT_S: Final = 0.5
#: Least time between two requests, in seconds; commits to other tables end an agent's waiting early.
PAUSE_S: Final = 0.05
#: Least time between two moves of the pin, in seconds; each move is two writes to ZooKeeper.
PIN_INTERVAL_S: Final = 20.0
#: A query without new rows moves its checkpoint after this time, in seconds, by an empty batch. So the
#: history that the query needs after a restart is never older.
MOVE_INTERVAL_S: Final = 600.0
#: Age up to which a known status of the cluster is used again, in seconds.
STATUS_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The parts and commits between two positions.

    Attributes:
        csn: CSN of the end.
        first: Parts of the initial rows, at this CSN, as agents list them.
        sets: Commits after the initial rows.
    """

    csn: int
    first: Sequence[Fields] = ()
    sets: Sequence[ChangeSet] = ()


class TableTailer:
    """The tailer of one table, for one thread.

    Every method may raise:
        SnapshotTooOldError: The history that is to be read next is not kept any more.
        UnknownTableError, NoSuchCsnError: The checkpoint or an option does not fit the cluster.
        StandbyError, UnavailableError: No replica can answer.
    """

    def __init__(self, options: ReadStreamOptions) -> None:
        self._options = options
        self._table = options.target.table
        self._removal_policy = _removal_policy(options)
        self._db = _connected(options.target, failover=options.failover)
        self._pin: Snapshot | None = None
        self._pinned_at: float | None = None
        self._status: tuple[float, Fields] | None = None
        self._bound: int | None = None
        #: A position, and a CSN up to which nothing new follows it.
        self._quiet: tuple[Position, int] | None = None
        self._requested_at = -PAUSE_S
        self._moved_at = time.monotonic()
        self._first: tuple[int, list[Fields]] | None = None
        self._begun: Position | None = None
        #: A beginning that is to be the end of an empty first batch, so that the checkpoint has it.
        self._to_record: Position | None = None
        self._planned: tuple[Position, Position, BatchPlan] | None = None

    def close(self) -> None:
        """Release the pin and close the connection."""
        if self._pin is not None:
            self._pin.close()
        self._db.close()

    def status(self) -> Fields:
        """Return the status of the cluster, at most `STATUS_S` old."""
        now = time.monotonic()
        if self._status is None or now - self._status[0] > STATUS_S:
            self._status = now, self._db.status()
        return self._status[1]

    def definition(self) -> Fields:
        """Return the definition of the table."""
        return self._db.table(self._table)

    def stop_at_newest(self) -> None:
        """Ignore all commits after the newest one."""
        self._bound = int(self._db.status()["end_csn"])

    def begin(self) -> Position:
        """Return the position where a new query begins: the same one at each call.

        Spark asks for it until the first batch has ended, in the processes that run this batch again too. It
        keeps only the end of the batch; see `plan`.
        """
        if self._begun is None:
            self._begun = self._beginning()
            if self._options.csn is None and self._begun.parts is None:
                self._to_record = self._begun
        return self._begun

    def _beginning(self) -> Position:
        options = self._options
        if options.csn is not None:
            return Position(options.csn)
        csn = self._bound if options.at_ms is None else None
        self._hold(self._db.snapshot(csn, at=options.at_ms, lease=options.lease_s))
        assert self._pin is not None
        begin_csn = self._pin.csn
        reads_some = self._reads_present_rows() and self._first_parts(begin_csn)
        return Position(begin_csn, 0 if reads_some else None)

    def _reads_present_rows(self) -> bool:
        return self._options.at_ms is None and self._options.begin is Begin.EARLIEST

    def advance(self, start: Position, limits: BatchLimits) -> Position:
        """Return the end of the next batch; it is `start` if nothing new exists.

        It is also `start` for the first batch of a query that begins with the present, or at a time: the end
        of a batch is kept, and so is the beginning.

        Raises:
            BadRequestError: The next commit removes rows, which the query cannot read.
        """
        if start == self._to_record:
            self._to_record = None
            return start
        self._pin_once(start.csn)
        if start.parts is None:
            end, batch = self._advance_commits(start, limits)
        else:
            end, batch = self._advance_first(start.csn, start.parts, limits)
        if end != start:
            self._moved_at = time.monotonic()
            self._planned = start, end, batch
        return end

    def plan(self, start: Position, end: Position) -> BatchPlan:
        """Return the batch between two positions; equal ends always give the same batch.

        The start of a first batch that is run again is what `begin` has said in this process, at a later CSN
        than in the run before. The batch is what its end says: the first rows at that CSN, or nothing.

        Raises:
            BadRequestError: A commit removes rows, which the query cannot read.
        """
        if self._planned is not None and self._planned[:2] == (start, end):
            return self._planned[2]
        if start == self._begun and self._options.csn is None:
            self._to_record = self._pinned_at = None
            start = Position(end.csn, 0 if self._reads_present_rows() else None)
        self._pin_once(start.csn)
        if start.parts is not None:
            return BatchPlan(start.csn, first=self._first_parts(start.csn)[start.parts : end.parts])
        sets, blocking = readable(
            self._db.changes(self._table, start.csn, end.csn).sets(), self._removal_policy
        )
        if blocking is not None:
            raise removal_error(blocking, self._table)
        return BatchPlan(end.csn, sets=sets)

    def release(self, position: Position) -> None:
        """Let the pin move to a position; the query does not need earlier history any more."""
        self._move_pin(position.csn)

    @property
    def newest(self) -> int | None:
        """The newest CSN that the client has seen; None before the first answer."""
        return self._db.seen_csn or None

    # -- the rows that exist when a query begins ------------------------------------------------------------

    def _advance_first(self, csn: int, done: int, limits: BatchLimits) -> tuple[Position, BatchPlan]:
        parts = self._first_parts(csn)
        count = admit([int(part["length"]) for part in parts[done:]], limits)
        end = Position(csn, done + count if done + count < len(parts) else None)
        return end, BatchPlan(csn, first=parts[done : done + count])

    def _first_parts(self, csn: int) -> list[Fields]:
        if self._first is None or self._first[0] != csn:
            self._first = csn, in_order(self._db.parts(self._table, csn=csn))
        return self._first[1]

    # -- later commits --------------------------------------------------------------------------------------

    def _advance_commits(self, start: Position, limits: BatchLimits) -> tuple[Position, BatchPlan]:
        after = self._quiet[1] if self._quiet is not None and self._quiet[0] == start else start.csn
        new_sets: list[ChangeSet] = []
        while self._bound is None or after < self._bound:
            page = self._page(after, limits, waits=not new_sets)
            sets, blocking = readable(page.sets, self._removal_policy)
            new_sets += sets
            if blocking is not None:
                if not new_sets:
                    raise removal_error(blocking, self._table)
                after = new_sets[-1].csn
                break
            after = page.to
            if page.complete or (new_sets and limits != BatchLimits()):
                break
        if new_sets:
            return Position(after), BatchPlan(after, sets=new_sets)
        self._quiet = start, after
        self._move_pin(after)
        if after > start.csn and time.monotonic() - self._moved_at > MOVE_INTERVAL_S:
            return Position(after), BatchPlan(after)
        return start, BatchPlan(start.csn)

    def _page(self, after: int, limits: BatchLimits, *, waits: bool) -> ChangePage:
        if self._bound is not None or not waits:
            wait_s = None
        else:
            time.sleep(max(0.0, self._requested_at + PAUSE_S - time.monotonic()))
            wait_s = min(WAIT_S, float(self.status()["wait_bound_s"]))
        page = self._db.changes(self._table, after, self._bound).page(
            files_max=limits.files_max, bytes_max=limits.bytes_max, wait_s=wait_s
        )
        self._requested_at = time.monotonic()
        return page

    # -- the pin --------------------------------------------------------------------------------------------

    def _pin_once(self, csn: int) -> None:
        """Pin the CSN at which a query continues, unless a pin was made before."""
        if self._pinned_at is None:
            self._pinned_at = time.monotonic()
            # This table may keep its history for longer than the others; if not, the next request fails.
            with suppress(SnapshotTooOldError):
                self._hold(self._db.snapshot(csn, lease=self._options.lease_s))

    def _move_pin(self, csn: int) -> None:
        if self._pin is None or self._pinned_at is None or csn <= self._pin.csn:
            return
        if time.monotonic() - self._pinned_at >= PIN_INTERVAL_S:
            self._hold(self._db.snapshot(csn, lease=self._options.lease_s))

    def _hold(self, snapshot: Snapshot) -> None:
        before, self._pin, self._pinned_at = self._pin, snapshot, time.monotonic()
        if before is not None:
            before.close()


def _removal_policy(options: ReadStreamOptions) -> RemovalPolicy:
    if options.change_feed:
        return RemovalPolicy.READ
    return RemovalPolicy.SKIP if options.skip_changes else RemovalPolicy.REFUSE


def _connected(target: TableTarget, *, failover: bool) -> Database:
    """Return a client that asks the target's replica first; without failover that replica alone."""
    replica = target.replica
    if replica is None or not failover:
        return connect(list(target.urls), replica=replica, token=target.token)
    with connect(list(target.urls), token=target.token) as db:
        rows = {row["id"]: row for row in db.status()["replicas"]}
    if replica not in rows or not rows[replica].get("api"):
        return connect(list(target.urls), replica=replica, token=target.token)  # its error lists the replicas
    return connect([f"{target.scheme}://{rows[replica]['api']}", *target.urls], token=target.token)
