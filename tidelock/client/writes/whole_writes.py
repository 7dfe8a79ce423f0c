"""Transactions of one request: small rows for one or more tables, begun, inserted and committed at once.

The tid is known before the request leaves: each client reserves tids at a home and uses each once. So a lost
answer is dealt with as that of any commit (see `decide`): the home is asked for the commit of the tid, then
any replica for its outcome. A question for the outcome of a reserved tid ends its reservation. So the answer
"aborted" holds, even if the request arrives late, and the rows may be written again under another tid.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from tidelock.client.agents import forks
from tidelock.client.agents.connection import Connection
from tidelock.client.agents.members import KnownMember
from tidelock.client.agents.transport import WHOLE_BODY_BYTES_MAX
from tidelock.client.values.data import Data, ipc_stream, is_pandas, open_rows
from tidelock.client.values.results import CommitResult, commit_result
from tidelock.client.writes.decide import ATTEMPTS_MIN, decide
from tidelock.errors import (
    CommitUnknownError,
    FencedError,
    LabelExistsError,
    NoConnectionError,
    NotCommittedError,
    RefusedError,
    TidelockError,
    UnavailableError,
    UnknownTransactionError,
)
from tidelock.wire.transactions import CommitAnswer, CommitRequest
from tidelock.wire.writes import ReservedTids, TableRows, TidsRequest, WriteHead, encode

#: A block of tids is used for this share of the time for which it stays reserved: a request takes time, too.
_USED_SHARE: Final = 0.5
#: The first block of a home; each one that is used up in time is followed by one of twice the size.
_FIRST_COUNT: Final = 1
_COUNT_MAX: Final = 64


class ReservedBlocks:
    """The tids that a client has reserved, at each home; thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._blocks: dict[str, _Block] = {}
        forks.register(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without tids: each must be used once."""
        return ReservedBlocks, (self._connection,)

    def after_fork(self) -> None:
        """Leave the tids to the parent: each must be used once."""
        self._lock = threading.Lock()
        self._blocks = {}

    def next(self, home: KnownMember, timeout_s: float) -> str:
        """Return a tid of a home that was not used; reserve further ones if need be.

        Raises:
            UnavailableError: The home does not answer, or begins no transactions now.
        """
        with self._lock:
            block = self._blocks.get(home.id)
            tid = None if block is None else block.take()
        if tid is not None:
            return tid
        count = _FIRST_COUNT if block is None or block.over else min(2 * block.count, _COUNT_MAX)
        begun = time.monotonic()
        reserved = self._connection.transport.call(
            home.api,
            "POST",
            "/tids",
            answer=ReservedTids,
            body=TidsRequest(count),
            timeout_s=timeout_s,
            elsewhere=self._connection.members.others,
        )
        block = _Block(reserved, begun + reserved.seconds * _USED_SHARE)
        with self._lock:
            self._blocks[home.id] = block
            tid = block.take()
        assert tid is not None, "a block that was just reserved has a tid"
        return tid

    def drop(self, home: KnownMember) -> None:
        """Forget the tids of a home, which does not know them any more."""
        with self._lock:
            self._blocks.pop(home.id, None)


class _Block:
    """Tids of one home, each of which is given once."""

    def __init__(self, reserved: ReservedTids, until_s: float) -> None:
        self.count = reserved.count
        self._tids = reserved.tids()
        self._until_s = until_s

    @property
    def over(self) -> bool:
        """Return whether its time is over."""
        return time.monotonic() >= self._until_s

    def take(self) -> str | None:
        """Return the next tid; None if there is none, or the time is over."""
        return None if self.over else next(self._tids, None)


class WholeWrite:
    """One transaction that is sent as one request; it may be sent again under another tid.

    Args:
        connection: Connection of the client.
        blocks: The tids of the client.
        rows: Tables and their streams, in the order of the inserts.
        head: The head; its tid, its `min_csn` and its timeout are filled in for each request.
        timeout_s: How long to try to learn the outcome.
        sending: Called with home and tid before each request; its error ends the write.
    """

    def __init__(
        self,
        connection: Connection,
        blocks: ReservedBlocks,
        rows: Sequence[tuple[str, bytes]],
        head: WriteHead,
        timeout_s: float,
        sending: Callable[[KnownMember, str], object] = lambda _home, _tid: None,
    ) -> None:
        self._connection = connection
        self._blocks = blocks
        self._streams = [stream for _, stream in rows]
        self._head = msgspec.structs.replace(
            head, rows=tuple(TableRows(table, len(stream)) for table, stream in rows)
        )
        self._timeout_s = timeout_s
        self._sending = sending

    def once(self) -> CommitResult:
        """Write at the first replica that can; errors as `Transaction.insert` and `Transaction.commit`."""
        try:
            result = self._connection.members.ask(self._at)
        except LabelExistsError as error:
            self._connection.highest_csn.note(error.details.get("csn"))  # the caller treats it as its own
            raise
        self._connection.highest_csn.note(result.csn)
        return result

    def _at(self, home: KnownMember) -> CommitResult:
        """Write at a home.

        An UnavailableError says that nothing is written, and never will be: another replica may be tried.
        """
        try:
            return self._send(home)
        except UnknownTransactionError:  # the home was started again, or the tid was reserved too long ago
            self._blocks.drop(home)
            return self._send(home)

    def _send(self, home: KnownMember) -> CommitResult:
        tid = self._blocks.next(home, self._connection.members.patience_s)
        self._sending(home, tid)
        transport = self._connection.transport
        attempt_s = self._timeout_s / ATTEMPTS_MIN
        head = msgspec.structs.replace(
            self._head, tid=tid, min_csn=self._connection.highest_csn.at_least(None), timeout_s=attempt_s
        )
        try:
            answer = transport.write(
                home.api,
                "/commits",
                encode(head, self._streams),
                answer=CommitAnswer,
                timeout_s=attempt_s + transport.timeouts.connect_s,
            )
        except NoConnectionError:
            raise
        except TidelockError as error:
            if isinstance(error, RefusedError) and not isinstance(error, FencedError):
                raise
            # It may be committed; a home that is fenced does not know.
            if isinstance(error, UnavailableError):
                self._connection.members.note(home, error)
            return self._decided(home, tid, error)
        return commit_result(answer)

    def _decided(self, home: KnownMember, tid: str, cause: TidelockError) -> CommitResult:
        lost = cause if isinstance(cause, UnavailableError) else None
        try:
            asked = CommitRequest(self._head.wait)
            return decide(self._connection, home, tid, asked, timeout_s=self._timeout_s, lost=lost)
        except NotCommittedError:
            if isinstance(cause, UnavailableError):
                raise cause from None
            raise
        except CommitUnknownError as error:
            self._connection.highest_csn.note(error.details.get("csn"))
            raise


def small_streams(rows: Mapping[str, Data]) -> dict[str, bytes] | None:
    """Return the IPC stream of each table; None if they are too large for one request, or of unknown size.

    Raises:
        BadRequestError, SchemaMismatchError: As `data.open_rows`.
    """
    if not all(isinstance(data, pa.Table | pa.RecordBatch) or is_pandas(data) for data in rows.values()):
        return None
    if sum(_bytes(data) for data in rows.values()) > WHOLE_BODY_BYTES_MAX:
        return None
    streams = {table: b"".join(_pieces(data)) for table, data in rows.items()}
    return streams if sum(map(len, streams.values())) <= WHOLE_BODY_BYTES_MAX else None


def _bytes(data: Any) -> int:
    """Return the bytes of rows in memory."""
    if not isinstance(data, pa.Table | pa.RecordBatch):
        return int(data.memory_usage().sum())
    held: int = data.get_total_buffer_size()  # more for a slice, and cheap
    return held if held <= WHOLE_BODY_BYTES_MAX else int(data.nbytes)


def _pieces(data: Data) -> Iterator[bytes | memoryview]:
    return ipc_stream(open_rows(data))
