"""Rows for landing tables: sent without a transaction, and answered when they are durable."""

from __future__ import annotations

import time
from urllib.parse import urlencode

from tidelock.client.agents.connection import Connection
from tidelock.client.agents.members import KnownMember
from tidelock.client.agents.repetition import repeat
from tidelock.client.agents.transport import ARROW_STREAM, WHOLE_BODY_BYTES_MAX, segment
from tidelock.client.values.data import Data, open_rows, small_streams_of
from tidelock.client.values.results import LandResult
from tidelock.client.writes.decide import ATTEMPTS_MIN
from tidelock.errors import (
    CommitUnknownError,
    FencedError,
    NoAnswerError,
    TidelockError,
    UnavailableError,
)
from tidelock.wire.writes import LandAnswer


class Landing:
    """The writer of landing tables; part of `Database`."""

    _connection: Connection

    def land(
        self, table: str, data: Data, *, at_least_once: bool = False, timeout_s: float | None = None
    ) -> LandResult:
        """Write rows to a landing table (property `landing`), outside of any transaction.

        Rows are sent in pieces of about 256 KiB, each of which counts by itself: if one fails, those before
        it are written. A piece is written when it is durable on `copies` replicas; it becomes visible soon
        after, together with the rows of other clients. In a table with a unique key the last row of a key
        wins, and a piece is written when it is visible.

        Args:
            table: `name` or `namespace.name`.
            data: As in `Transaction.insert`.
            at_least_once: Send a piece again, to another replica if need be, after its answer was lost. Its
                rows may be written twice then; with a unique key that is harmless, unless rows of the same
                keys are sent at the same time.
            timeout_s: How long to try, for each piece; default: the client's.

        Raises:
            CommitUnknownError: Rows of the last piece may or may not become visible.
            TableModeError: It is no landing table.
            RefusedError: The rows do not fit the table, or a limit was passed; nothing of the piece is kept.
            UnavailableError: No replica takes rows now; nothing of the piece is kept. The `details` of each
                error say how many rows of the call were written before (`rows_written`).
        """
        limit_s = self._connection.transport.timeouts.answer_s if timeout_s is None else timeout_s
        rows, csn = 0, None
        for stream in small_streams_of(open_rows(data), WHOLE_BODY_BYTES_MAX):
            try:
                answer = self._land(table, stream, limit_s, again=at_least_once)
            except TidelockError as error:
                error.details["rows_written"] = rows
                raise
            rows += answer.rows
            csn = answer.csn if csn is None else max(csn, answer.csn or csn)
        self._connection.highest_csn.note(csn)
        return LandResult(rows=rows, csn=csn)

    def _land(self, table: str, stream: bytes, limit_s: float, *, again: bool) -> LandAnswer:
        piece = _Piece(self._connection, table, stream, limit_s / ATTEMPTS_MIN, again=again)
        doubtful = (CommitUnknownError, FencedError) if again else ()
        try:
            return repeat(
                lambda: self._connection.members.ask(piece.send),
                (UnavailableError, *doubtful),
                deadline=time.monotonic() + limit_s,
                waits=self._connection.transport.waits,
                what=f"rows for landing table {table} (timeout_s={limit_s:g})",
            )
        except CommitUnknownError:
            raise
        except TidelockError as error:
            if piece.doubtful:  # an attempt before may have written the rows
                raise _unknown(table, error) from error
            raise


class _Piece:
    """A piece of rows that is sent until it is answered.

    Attributes:
        doubtful: After one of the attempts nobody knows whether the rows are written.
    """

    def __init__(
        self, connection: Connection, table: str, stream: bytes, attempt_s: float, *, again: bool
    ) -> None:
        self._connection, self._table, self._stream = connection, table, stream
        self._attempt_s, self._again = attempt_s, again
        self.doubtful = False

    def send(self, home: KnownMember) -> LandAnswer:
        """Send the rows to a home. Where they may be written, the error says so, or they are sent again."""
        transport = self._connection.transport
        asked = {"timeout_s": self._attempt_s, "min_csn": self._connection.highest_csn.at_least(None)}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        try:
            return transport.write(
                home.api,
                f"/landings/{segment(self._table)}?{query}",
                self._stream,
                answer=LandAnswer,
                timeout_s=self._attempt_s + transport.timeouts.connect_s,
                content_type=ARROW_STREAM,
            )
        except CommitUnknownError:
            self.doubtful = True
            raise
        except (NoAnswerError, FencedError) as error:
            self.doubtful = True
            if self._again:
                raise
            if isinstance(error, NoAnswerError):
                self._connection.members.note(home, error)
            raise _unknown(self._table, error) from error


def _unknown(table: str, error: TidelockError) -> CommitUnknownError:
    return CommitUnknownError(
        f"it is not known whether rows of {table} are written ({error.message}); to send them again may "
        "write them twice, unless the table has a unique key",
        table=table,
    )
