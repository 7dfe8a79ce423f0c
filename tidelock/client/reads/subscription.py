"""A subscription: the rows of a table at a CSN, then its changes as they come, with progress in between.

Each answer with changes is received as a whole before its first row is delivered: in memory up to a limit,
beyond it in a temporary file. So an answer that is cut is asked for again at another replica without a lost
or doubled row, although the rows of a commit come in no certain order, and an agent never waits for a slow
subscriber. The rows of the snapshot are delivered as they arrive. Every replica sends them in the same order,
so after a cut another one goes on behind those that were delivered.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.client.agents.connection import Connection
from tidelock.client.agents.leases import RENEWALS_PER_LEASE
from tidelock.client.agents.members import KnownMember
from tidelock.client.reads.feed import ChangePage, Changes
from tidelock.client.reads.position import Position
from tidelock.client.reads.scan import library, quoted
from tidelock.client.reads.snapshot import Snapshot
from tidelock.client.reads.stream import BatchStream
from tidelock.errors import (
    BadRequestError,
    SnapshotClosedError,
    SnapshotTooOldError,
    TidelockError,
    UnavailableError,
)
from tidelock.wire.reads import QueryRequest

#: The least time between two questions for changes that were answered by none, in seconds: commits of other
#: tables end the wait of an agent, too.
PAUSE_S: Final = 0.05
#: The longest wait of an agent for a commit, in seconds. So soon the reader notices that the subscription was
#: closed, and no such wait is logged.
POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table that have appeared or disappeared at one CSN.

    `db.insert` and `pyarrow.table` take it, and all that read Arrow streams.

    Attributes:
        csn: The CSN; of rows of the snapshot that of the snapshot.
        time: Its effective time (UTC).
        batch: The columns of the table, then `_change_type`, `_commit_csn` and `_commit_time` as in
            `Changes.to_batches`.
    """

    csn: int
    time: datetime | None
    batch: pa.RecordBatch

    def to_table(self) -> pa.Table:
        """Return the rows as a pyarrow Table."""
        return pa.Table.from_batches([self.batch])

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame; ImportError where pandas is not installed."""
        return self.batch.to_pandas()

    def to_polars(self) -> Any:
        """Return the rows as a polars DataFrame; ConfigError where polars is not installed."""
        return library("polars").from_arrow(self.batch)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows by the Arrow PyCapsule interface."""
        return self.to_table().__arrow_c_stream__(requested_schema)


@dataclass(frozen=True, slots=True)
class Progress:
    """All changes at or below a CSN were delivered: no more of them will come.

    Attributes:
        csn: The CSN; it never decreases, and stays the same while nothing is committed.
        time: Its effective time (UTC); None if it is not known.
    """

    csn: int
    time: datetime | None


Message = Rows | Progress


@dataclass(frozen=True, slots=True)
class SubscribedRange:
    """The part of a history that a subscriber wants.

    Attributes:
        table: Full name of the table.
        as_of: The CSN where it begins; None: the newest one.
        until: The last CSN, or the time of the last one; None: without end.
        with_rows: Whether the rows at `as_of` come first.
    """

    table: str
    as_of: int | None
    until: int | datetime | None
    with_rows: bool


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    """See `Database.subscribe`."""

    progress_every_s: float
    batch_rows: int
    memory_bytes: int


class Subscription(Iterator[Message]):
    """The messages of a subscription; made by `Database.subscribe`. A context manager.

    First come the rows of the snapshot, then a `Progress` of its CSN, then for each commit in the order of
    the CSNs its rows, those that disappear before those that appear. All rows of a CSN come before the
    `Progress` that covers it. One thread at a time may read; any thread may close it, and the reader then
    meets the end when the request under way is answered: within a second where nothing changes.

    What is not delivered yet is pinned: however slow the subscriber is, history is kept for it. The pin moves
    on behind the progress, no more often than a lease is renewed.

    `next` raises:

    Raises:
        UnavailableError: No replica can answer. Nothing is lost: the next call goes on where this one failed.
        SnapshotTooOldError: The pin was lost (this client was away for longer than its lease, or an operator
            has raised the horizon), and history was deleted meanwhile. Never fewer changes.
        UnknownTableError: The table was dropped, replaced or renamed, and all changes before that were told.
        TooLargeError: The changes of one commit need more than an agent allows for one statement.
        BadRequestError: Another thread is reading.
        TidelockError: Any other; after all but UnavailableError the subscription is closed.

    Attributes:
        table: Full name of the table.
        as_of: The CSN where it began.
    """

    def __init__(
        self,
        connection: Connection,
        wanted: SubscribedRange,
        limits: SubscriptionLimits,
        *,
        pin: Callable[[int | None], Snapshot],
        csn_at: Callable[[datetime], int],
    ) -> None:
        self.table = wanted.table
        self._connection, self._wanted, self._limits = connection, wanted, limits
        self._new_pin, self._csn_at = pin, csn_at
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._closed = threading.Event()
        self._messages = self._run()
        self._pin = self._pinned(wanted.as_of)
        try:
            self.as_of = self._pin.csn if wanted.as_of is None and self._pin else wanted.as_of or 0
            self._feed = Changes(
                connection, self.table, self.as_of, self.as_of, pin=None, newest=lambda: self.as_of
            )
            begin = self._feed.page()
            self._feed.to_csn = None
            self._end = wanted.until if isinstance(wanted.until, int) else None
            self._require_end_after(begin)
        except BaseException:
            self.close()
            raise
        self._begin = Progress(self.as_of, begin.time)
        #: Everything up to this CSN was delivered; rows above it only while a message of them is on its way.
        self._csn = self.as_of
        #: How many rows of the snapshot were delivered; None: it is complete, or not wanted.
        self._rows_read: int | None = 0 if wanted.with_rows else None
        self._told: Progress | None = None
        self._told_s = self._pin_moved_s = time.monotonic()

    @property
    def position(self) -> str | None:
        """Where a later subscription can go on (`Database.subscribe(resume=)`): at the last `Progress`.

        JSON of at most 4 KiB. Store it together with the effects of all messages up to that `Progress`. None
        before the first one: begin again.
        """
        if self._told is None:
            return None
        return Position(self._connection.members.cluster_id, self.table, self._told.csn).to_text()

    @property
    def closed(self) -> bool:
        """Whether the subscription was closed, has ended at `until`, or has failed for good."""
        return self._closed.is_set()

    def __next__(self) -> Message:
        if not self._reading.acquire(blocking=False):
            raise BadRequestError(
                f"another thread is reading this subscription to {self.table}; open one for each thread"
            )
        try:
            return self._next_message()
        finally:
            self._reading.release()
            if self.closed:
                self._end_messages()

    def close(self) -> None:
        """End the subscription and release its pin; harmless when it has ended."""
        with self._lock:
            self._closed.set()
            pin, self._pin = self._pin, None
        if pin is not None:
            pin.close()
        self._end_messages()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next_message(self) -> Message:
        if self._closed.is_set():
            raise StopIteration
        try:
            return next(self._messages)
        except UnavailableError:
            if self._closed.is_set():
                raise StopIteration from None
            self._messages = self._run()  # a generator that has raised is over; its state is in the object
            raise
        except BaseException as error:
            if self._closed.is_set() and isinstance(error, TidelockError):
                raise StopIteration from None
            self.close()
            raise

    # -- the messages ----------------------------------------------------------------------------------------

    def _run(self) -> Generator[Message, None, None]:
        """Yield the messages from here on; all that it has to know is in the object."""
        if self._told is None:
            if self._rows_read is not None:
                yield from self._snapshot()
                self._rows_read = None
            yield self._tell(self._begin)
        while self._end is None or self._csn < self._end:
            self._move_pin()
            page = self._next_page()
            if page.sets:
                with self._connection.members.ask(functools.partial(self._received, page.to)) as rows:
                    for batch in pa.ipc.open_stream(rows):
                        yield from self._cut(batch)
            self._csn = page.to
            due = time.monotonic() - self._told_s >= self._limits.progress_every_s
            if page.sets or due or page.to == self._end:
                yield self._tell(Progress(page.to, page.time))
            else:
                self._closed.wait(PAUSE_S)
            self._require_open()

    def _tell(self, progress: Progress) -> Progress:
        self._told, self._told_s = progress, time.monotonic()
        return progress

    def _next_page(self) -> ChangePage:
        """Return the changes that come next, up to the end; without any after a wait.

        Here, and nowhere else, the end is learnt. A table that was dropped, replaced or renamed has no page
        behind the CSN before that: the next question for one is refused.
        """
        left_s = self._told_s + self._limits.progress_every_s - time.monotonic()
        wait_s = max(0.0, min(left_s, self._connection.members.wait_bound_s, POLL_S))
        page = self._feed.page(after=self._csn, bytes_max=self._limits.memory_bytes, wait_s=wait_s)
        until = self._wanted.until
        if self._end is None and isinstance(until, datetime) and page.time is not None and page.time > until:
            # The log's time never decreases, so no later commit has this time or an earlier one.
            self._end = max(self._csn, self._csn_at(until))
        if self._end is not None and page.to > self._end:
            self._feed.to_csn = self._end
            page = self._feed.page(after=self._csn, bytes_max=self._limits.memory_bytes)
        return page

    def _received(self, to: int, member: KnownMember) -> IO[bytes]:
        """Return the rows of all changes up to a CSN, as one replica has sent them: an Arrow stream."""
        with contextlib.ExitStack() as held:
            rows = held.enter_context(tempfile.SpooledTemporaryFile(self._limits.memory_bytes))
            stream = held.enter_context(contextlib.closing(self._feed.stream(self._csn, to, member)))
            with pa.ipc.new_stream(rows, stream.schema) as writer:
                for batch in stream:
                    self._require_open()
                    writer.write_batch(batch)
            rows.seek(0)
            held.pop_all()
        return rows

    def _snapshot(self) -> Iterator[Message]:
        """Yield the rows of the snapshot that were not delivered yet."""
        members = self._connection.members
        first: tuple[str, ...] = ()
        fruitless = 0
        while True:
            before = self._rows_read or 0
            member, stream = members.ask(functools.partial(self._opened, before), first=first)
            try:
                with contextlib.closing(stream):
                    for batch in stream:
                        self._require_open()
                        self._rows_read = (self._rows_read or 0) + batch.num_rows
                        yield from self._cut(self._as_inserts(batch))
            except UnavailableError as error:
                members.note(member, error)
                others = members.in_order()
                first = tuple(other.id for other in others if other != member)
                fruitless = 0 if self._rows_read != before else fruitless + 1
                if fruitless == len(others):
                    raise
            else:
                return

    def _opened(self, offset: int, member: KnownMember) -> tuple[KnownMember, BatchStream]:
        """Ask one replica for the rows of the snapshot behind the first ones.

        The engine keeps the order of the parts, which is the same at all replicas.
        """
        sql = f"select * from {quoted(self.table)} offset {offset}"  # noqa: S608 - a quoted name and a number
        transport, others = self._connection.transport, self._connection.members.others
        body = QueryRequest(csn=self.as_of, sql=sql)
        return member, BatchStream(transport.stream(member.api, "/query", body, elsewhere=others), member.api)

    def _as_inserts(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the snapshot with the columns that changes have."""
        for name, kind, value in (
            ("_change_type", pa.string(), "insert"),
            ("_commit_csn", pa.int64(), self.as_of),
            ("_commit_time", pa.timestamp("us", tz="UTC"), self._begin.time),
        ):
            batch = batch.append_column(name, pa.repeat(pa.scalar(value, kind), batch.num_rows))
        return batch

    def _cut(self, batch: pa.RecordBatch) -> Iterator[Rows]:
        """Yield rows as messages, each of one CSN and not too long."""
        begin = 0
        for end in pc.run_end_encode(batch["_commit_csn"]).run_ends.to_pylist():
            for at in range(begin, end, self._limits.batch_rows):
                piece = batch.slice(at, min(self._limits.batch_rows, end - at))
                yield Rows(piece["_commit_csn"][0].as_py(), piece["_commit_time"][0].as_py(), piece)
            begin = end

    def _end_messages(self) -> None:
        """End the generator, unless a thread is in it: that one does so when it leaves."""
        if self._reading.acquire(blocking=False):
            try:
                self._messages.close()
            finally:
                self._reading.release()

    def _require_open(self) -> None:
        if self.closed:
            raise SnapshotClosedError(
                f"this program has closed the subscription to {self.table}; open another one", csn=self._csn
            )

    def _require_end_after(self, begin: ChangePage) -> None:
        until = self._wanted.until
        if isinstance(until, int) and until < self.as_of:
            raise BadRequestError(
                f"expected until at or after as_of, CSN {self.as_of}; found {until}; give a later one"
            )
        if isinstance(until, datetime) and begin.time is not None and until < begin.time:
            raise BadRequestError(
                f"expected until at or after as_of, CSN {self.as_of} at {begin.time}; found {until}; give a "
                "later one"
            )

    # -- the pin ---------------------------------------------------------------------------------------------

    def _pinned(self, csn: int | None) -> Snapshot | None:
        """Pin a CSN; None if it is too old to pin (a table may still keep its history for longer)."""
        try:
            return self._new_pin(csn)
        except SnapshotTooOldError:
            return None

    def _move_pin(self) -> None:
        """Move the pin to the CSN up to which the subscriber has everything: the new one is made first."""
        pin, now_s = self._pin, time.monotonic()
        every_s = self._limits.progress_every_s if pin is None else pin.lease_s / RENEWALS_PER_LEASE
        if now_s - self._pin_moved_s < every_s or (pin is not None and pin.csn == self._csn):
            return
        try:
            newer = self._pinned(self._csn)
        except UnavailableError:
            return  # the old one keeps more
        self._pin_moved_s = now_s
        unused = newer
        with self._lock:
            if newer is not None and not self.closed:
                unused, self._pin = self._pin, newer
        if unused is not None:
            unused.close()
