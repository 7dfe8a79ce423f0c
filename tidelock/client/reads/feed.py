"""The change feed of a table: the parts and the rows that commits have added and removed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Self, TypeVar

import pyarrow as pa

from tidelock.client.agents.connection import Connection
from tidelock.client.agents.members import KnownMember
from tidelock.client.agents.transport import segment
from tidelock.client.reads.snapshot import Snapshot
from tidelock.client.reads.stream import BatchStream
from tidelock.errors import SnapshotTooOldError
from tidelock.wire.changes import ChangedPart, ChangedRowsRequest, ChangePageAnswer, ChangeSetAnswer
from tidelock.wire.rows import instant

__all__ = ["ChangePage", "ChangeSet", "ChangedPart", "Changes"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The changes of a table by the commit at one CSN. A rewritten part is in `removed`, its heir in `added`.

    Attributes:
        csn: The CSN.
        time: Its effective time (UTC).
        tids: The transactions of the CSN that have changed the table; several can share one CSN.
        added: Parts that are visible from this CSN on.
        removed: Parts that were visible before.
    """

    csn: int
    time: datetime | None
    tids: tuple[str, ...]
    added: tuple[ChangedPart, ...]
    removed: tuple[ChangedPart, ...]


@dataclass(frozen=True, slots=True)
class ChangePage:
    """The change sets of one answer.

    Attributes:
        to: The page holds all change sets up to this CSN.
        complete: Whether nothing was left out because of a limit.
        sets: In the order of their CSNs.
        time: The effective time of `to` (UTC); None if it is not known.
    """

    to: int
    complete: bool
    sets: tuple[ChangeSet, ...]
    time: datetime | None = None


class Changes:
    """The changes of a table in (from_csn, to_csn]; made by `Database.changes` and `Database.diff`.

    The parts of the changes remain readable while a method reads them, and inside a `with` block until its
    end: the object pins `from_csn`, unless the caller has done so. Every method raises:

    Raises:
        SnapshotTooOldError: `from_csn` is below the horizon of the table, `min_csn`. Never fewer changes.
        UnknownTableError: The table does not exist at `to_csn`.
        NoSuchCsnError: A CSN is above the end of the log.
        StandbyError: No replica has reached `to_csn` within its waiting bound.
        UnavailableError: No answer.

    Attributes:
        table: Its name.
        from_csn: CSN after which the changes begin.
        to_csn: CSN up to which the changes go. If it was not given, it is None until the changes are read,
            and `page` goes up to the snapshot CSN of the replica that answers.
        net: Whether `to_batches` and `to_table` give the difference of the two snapshots: rows at `from_csn`
            that are not at `to_csn` as deletes, the reverse as inserts, all with `_commit_csn` = `to_csn`.
            `sets` and `page` go commit by commit all the same.
    """

    def __init__(
        self,
        connection: Connection,
        table: str,
        from_csn: int,
        to_csn: int | None,
        *,
        pin: Callable[[int], Snapshot] | None,
        newest: Callable[[], int],
        net: bool = False,
    ) -> None:
        self.table, self.from_csn, self.to_csn, self.net = table, from_csn, to_csn, net
        self._connection, self._pin, self._newest = connection, pin, newest
        self._held: Snapshot | None = None

    def page(
        self,
        *,
        after: int | None = None,
        files_max: int | None = None,
        bytes_max: int | None = None,
        wait_s: float | None = None,
    ) -> ChangePage:
        """Return one answer of an agent: as many change sets as fit, but at least one if any exists.

        It pins nothing; the named parts remain readable for a while after the answer (`unpinned_ttl_s`).

        Args:
            after: Begin after this CSN; default `from_csn`.
            files_max: Most parts, added and removed ones together; default and limit: the agents'.
            bytes_max: Most bytes of these parts, likewise.
            wait_s: Without `to_csn`: how long the agent waits when it has nothing above `after`, for a
                program that follows a table; at most its `wait_bound_s`.
        """
        query = {
            "from": self.from_csn if after is None else after,
            "to": self.to_csn,
            "files_max": files_max,
            "bytes_max": bytes_max,
            "wait_s": wait_s,
        }
        path = f"/tables/{segment(self.table)}/changes"
        answer = self._connection.ask("GET", path, answer=ChangePageAnswer, query=query)
        self._connection.highest_csn.note(answer.to)
        sets = tuple(map(_change_set, answer.sets))
        return ChangePage(answer.to, answer.complete, sets, instant(answer.time_ms))

    def sets(self, *, files_max: int | None = None, bytes_max: int | None = None) -> Iterator[ChangeSet]:
        """Return all change sets in the order of their CSNs, requested page by page; see `page`."""
        for page in self._pages(files_max, bytes_max):
            yield from page.sets

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Return the changed rows in the order of their CSNs; one record batch is in memory at a time.

        Columns: those of the table, then `_change_type` ("insert" or "delete"; in a table with a unique key
        "update_preimage" and "update_postimage" for one key), `_commit_csn` and `_commit_time` (UTC). Rows
        that a commit has only moved from one part to another are no change: the rows deleted at a CSN are the
        bag of rows before minus the bag of rows after, and the inserted rows are the reverse. Of one CSN,
        the rows that disappear come before those that appear.

        Raises:
            TooLargeError: The changes of a commit need more memory, disk or time than an agent allows for one
                statement.
        """
        with contextlib.closing(self._streams(self._of_range)) as streams:
            for stream in streams:
                with contextlib.closing(stream):
                    yield from stream

    def to_table(self) -> pa.Table:
        """Return the changed rows; see `to_batches`. A truncated answer is requested from another replica."""
        return pa.concat_tables(self._streams(self._read))

    def stream(self, after: int, to: int, member: KnownMember, *, named_at: int | None = None) -> BatchStream:
        """Ask one replica for the changed rows in (after, to]; StandbyError if it is behind.

        Their columns are those of the table at `named_at`, where it has the name, by default at `to`.
        """
        path = f"/tables/{segment(self.table)}/changes/rows"
        response = self._connection.transport.stream(
            member.api,
            path,
            ChangedRowsRequest(after, to, net=self.net, named_at=named_at),
            elsewhere=self._connection.members.others,
        )
        return BatchStream(response, member.api)

    def close(self) -> None:
        """Release the pin that keeps the parts readable; harmless when it was released."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def __enter__(self) -> Self:
        self._held = self._pinned()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _streams(self, read: Callable[[int, int, KnownMember], T]) -> Generator[T, None, None]:
        """Read the rows page by page: at least one page, which names the columns; a difference is one."""
        if self.net:
            with self._readable() as to:
                yield self._connection.members.ask(functools.partial(read, self.from_csn, to))
            return
        after, any_read = self.from_csn, False
        for page in self._pages(None, None):
            if page.sets or (page.complete and not any_read):
                yield self._connection.members.ask(functools.partial(read, after, page.to))
                any_read = True
            after = page.to

    def _of_range(self, after: int, to: int, member: KnownMember) -> BatchStream:
        """Ask for a page of the range: all of them have the columns of its end."""
        return self.stream(after, to, member, named_at=None if to == self.to_csn else self.to_csn)

    def _read(self, after: int, to: int, member: KnownMember) -> pa.Table:
        return self._of_range(after, to, member).read_all()

    def _pages(self, files_max: int | None, bytes_max: int | None) -> Iterator[ChangePage]:
        with self._readable():
            after, complete = self.from_csn, False
            while not complete:
                page = self.page(after=after, files_max=files_max, bytes_max=bytes_max)
                yield page
                after, complete = page.to, page.complete

    @contextlib.contextmanager
    def _readable(self) -> Iterator[int]:
        """Keep the parts of the changes readable during the block, and return the last CSN of the range."""
        with contextlib.ExitStack() as stack:
            if self._held is None and (held := self._pinned()):
                stack.enter_context(held)
            if self.to_csn is None:
                self.to_csn = max(self.from_csn, self._newest())
            yield self.to_csn

    def _pinned(self) -> Snapshot | None:
        """Pin `from_csn`; None if it is too old to pin (a table may still keep its history for longer)."""
        if self._pin is None:
            return None
        try:
            return self._pin(self.from_csn)
        except SnapshotTooOldError:
            return None


def _change_set(answer: ChangeSetAnswer) -> ChangeSet:
    return ChangeSet(answer.csn, instant(answer.time_ms), answer.tids, answer.added, answer.removed)
