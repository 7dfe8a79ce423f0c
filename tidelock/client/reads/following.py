"""The changes of tables: commit by commit, between two snapshots, and as they come. Part of `Database`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tidelock.client.reads import position
from tidelock.client.reads.feed import Changes
from tidelock.client.reads.history import HistoryQuestions
from tidelock.client.reads.snapshot import Snapshot
from tidelock.client.reads.subscription import SubscribedRange, Subscription, SubscriptionLimits
from tidelock.client.values.arguments import Point, csn_or_time, full_name, seconds
from tidelock.errors import BadRequestError


class Following(HistoryQuestions):
    """The methods of a `Database` that read changes."""

    def snapshot(
        self,
        csn: int | str | None = None,
        *,
        at: datetime | int | str | None = None,
        min_csn: int | None = None,
        lease: str | float | None = None,
    ) -> Snapshot:
        """Open a snapshot."""
        raise NotImplementedError

    def changes(
        self, table: str, from_csn: int, to_csn: int | None = None, *, pinned: bool = False
    ) -> Changes:
        """Return the changes that commits have made to a table in (from_csn, to_csn].

        Args:
            table: `name` or `namespace.name`.
            from_csn: The changes begin after it: applied to the rows at this CSN they give those at `to_csn`.
            to_csn: The last CSN; default: the newest when they are read, not below what this client has seen.
            pinned: The caller holds a snapshot at `from_csn` or below, so no pin has to be made.

        Raises nothing by itself; its methods raise the errors that `Changes` lists.
        """
        pin = None if pinned else self.snapshot
        return Changes(self._connection, table, from_csn, to_csn, pin=pin, newest=self._newest)

    def diff(self, table: str, since: Point, until: Point | None = None) -> Changes:
        """Return the difference of two snapshots of a table: `to_table` and `to_batches` read it.

        It has the rows of `since` that are missing at `until` as deletes, and the rows of `until` that are
        missing at `since` as inserts; equal rows count as often as they occur. Rows that came and went in
        between are not in it. An agent computes it from the parts that commits in between have changed, with
        bounded memory.

        Args:
            table: `name` or `namespace.name`.
            since: The older snapshot: a CSN, or a time (a datetime with time zone, or its ISO 8601 text).
            until: The newer one; default: the newest CSN when it is read.

        Raises:
            BadRequestError: Neither a CSN nor a time.
            NoSuchCsnError, SnapshotTooOldError, StandbyError: A time, as `csn_at`. The methods of the result
                raise the errors that `Changes` lists, and BadRequestError if `since` is above `until`.
        """
        begin = self._csn_of(since, "since")
        end = None if until is None else self._csn_of(until, "until")
        return Changes(self._connection, table, begin, end, pin=self.snapshot, newest=self._newest, net=True)

    def subscribe(
        self,
        table: str,
        as_of: Point | None = None,
        *,
        until: Point | None = None,
        snapshot: bool = True,
        resume: str | None = None,
        progress_every: str | float = 1.0,
        batch_rows: int = 32 * 1024,
        memory_bytes: int = 16 << 20,
        lease: str | float | None = None,
    ) -> Subscription:
        """Follow a table: its rows at a CSN, then every change, with progress in between.

        Args:
            table: `name` or `namespace.name`.
            as_of: Where it begins: a CSN, or a time (a datetime with time zone, or its ISO 8601 text);
                default: the newest CSN, which contains everything that this client has committed or read.
            until: It ends after the last change at or below this CSN or time; default: never. A CSN or a
                time of the future is waited for.
            snapshot: Begin with the rows at `as_of`, as inserts; False: the subscriber has them.
            resume: `position` of an earlier subscription to the table, which this one continues: its CSN is
                `as_of`, and `snapshot` is False. None begins as without it.
            progress_every: A `Progress` comes at least so often, e.g. "5s" (or seconds).
            batch_rows: Most rows of one message.
            memory_bytes: Changes are asked for in pieces of about so many bytes of Parquet. What a piece
                needs beyond that when it is decoded, is kept in a temporary file until it is delivered.
            lease: How long the history that is not delivered yet stays readable after this client's last
                sign of life, e.g. "60s" (or seconds); default: the agent's.

        Raises:
            SnapshotTooOldError: `as_of` is below the horizon of the table, `min_csn`.
            NoSuchCsnError: `as_of` is above the end of the log, or a time that has not come yet.
            UnknownTableError: The table does not exist at `as_of`.
            StandbyError: No replica has reached `as_of` within its waiting bound.
            BadRequestError: `until` is before `as_of`; `as_of` and `resume` are both given; `resume` is no
                position, or one of another cluster or table; a number is out of range.
            UnavailableError: No answer.
        """
        limits = SubscriptionLimits(
            progress_every_s=_positive(seconds(progress_every), "progress_every"),
            batch_rows=_positive(batch_rows, "batch_rows"),
            memory_bytes=_positive(memory_bytes, "memory_bytes"),
        )
        cluster, name = self._connection.members.cluster_id, full_name(table)
        begin = None if as_of is None else self._csn_of(as_of, "as_of")
        if resume is not None:
            if begin is not None:
                raise BadRequestError(
                    "expected as_of or resume, found both; leave as_of out to continue at the position"
                )
            begin, snapshot = position.csn_of(resume, cluster=cluster, table=name), False
        end = None if until is None else csn_or_time(until, "until")
        return Subscription(
            self._connection,
            SubscribedRange(name, begin, end, with_rows=snapshot),
            limits,
            pin=lambda csn: self.snapshot(csn, lease=lease),
            csn_at=self.csn_at,
        )

    def _csn_of(self, point: Point, name: str) -> int:
        found = csn_or_time(point, name)
        return found if isinstance(found, int) else self.csn_at(found)


def _positive(number: Any, name: str) -> Any:
    if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
        raise BadRequestError(f"expected {name} above 0, found {number!r}; leave it out for the default")
    return number
