"""Routes of transactions: begin, rows, heartbeat, commit, rollback, kill, outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aiohttp import web

from tidelock.csnlog.core.ids import Csn, Tid
from tidelock.csnlog.core.results import Committed
from tidelock.errors import BadRequestError, TooLargeError
from tidelock.replica_agent.api.bearer import shows_life
from tidelock.replica_agent.api.http import answer, body, number, plain, seconds
from tidelock.replica_agent.api.turnstile import Turnstile
from tidelock.replica_agent.services.status import outcome_answer
from tidelock.replica_agent.services.transactions import TransactionService
from tidelock.replica_agent.transactions.ending.commit import WAITS, WaitFor
from tidelock.replica_agent.transactions.transaction import Isolation, Transaction
from tidelock.wire.failure import Failure
from tidelock.wire.statements import InsertResult
from tidelock.wire.transactions import (
    BeginRequest,
    Begun,
    CommitAnswer,
    CommitRequest,
    EndAnswer,
    LeaseAnswer,
)
from tidelock.wire.writes import LandAnswer, ReservedTids, TidsRequest, WriteHead, decode

#: Advice to senders of bodies that are too large.
_BEGIN_INSTEAD: Final = "begin a transaction, and insert the rows with it"
_LAND_LESS: Final = "send the rows in several calls of land()"


def parse_tid(text: str) -> Tid:
    """Read a tid from a path; BadRequestError when the text is not a tid."""
    try:
        return Tid.parse(text)
    except ValueError as error:
        raise BadRequestError(str(error)) from error


def parse_wait(text: str, timeout_s: float | None) -> WaitFor:
    """Read where a commit is to be applied before it is answered, and check the timeout of that wait."""
    if text not in WAITS:
        msg = f"wait={text!r} is not one of {', '.join(sorted(WAITS))}"
        raise BadRequestError(msg)
    if timeout_s is not None and not timeout_s > 0:
        msg = f"timeout_s={timeout_s} is not above 0; give seconds above 0, or leave it out"
        raise BadRequestError(msg)
    return WaitFor(text)


def partition_values(text: str) -> dict[str, Any]:
    """Read the values of a partition from a query: a JSON object."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        msg = f"partition={text!r} is not a JSON object {{column: value}}: {error}"
        raise BadRequestError(msg) from error


@dataclass(slots=True, eq=False, repr=False)
class TransactionRoutes:
    """Handlers below /api/v1/transactions, /api/v1/outcomes and /api/v1/labels."""

    service: TransactionService
    #: For writes of one request, of which one client can send thousands at once.
    turnstile: Turnstile = field(default_factory=Turnstile)

    async def begin(self, request: web.Request) -> web.Response:
        """Begin a transaction at this replica, its home."""
        asked = await body(request, BeginRequest)
        try:
            isolation = Isolation(asked.isolation)
        except ValueError:
            offered = ", ".join(item.value for item in Isolation)
            msg = f"isolation={asked.isolation!r} is not offered; use one of {offered}"
            raise BadRequestError(msg) from None
        tx = await self.service.begin(
            label=asked.label,
            batch=asked.batch,
            min_csn=None if asked.min_csn is None else Csn(asked.min_csn),
            fresh=asked.fresh,
            lease_s=asked.lease_s,
            meta=asked.meta,
            progress=asked.progress,
            isolation=isolation,
            key=asked.key,
        )
        return answer(Begun(str(tx.tid), tx.tid.snapshot, tx.lease.seconds), 201)

    def _find(self, request: web.Request) -> Transaction:
        return self.service.transactions.find(request.match_info["tid"], sign_of_life=shows_life(request))

    async def list(self, _request: web.Request) -> web.Response:
        """List the open and recently ended transactions of this replica."""
        return answer(self.service.describe_all())

    async def show(self, request: web.Request) -> web.Response:
        """Show one transaction."""
        return answer(self.service.describe(request.match_info["tid"]))

    async def heartbeat(self, request: web.Request) -> web.Response:
        """Restart the lease; for a transaction that accepts no statements, return the reason."""
        tx = self._find(request)
        error = tx.ending.error
        why = None if error is None else Failure(**error.to_wire())
        return answer(LeaseAnswer(tx.lease.seconds, tx.state.value, why))

    async def insert(self, request: web.Request) -> web.Response:
        """Stage rows: the body is an Arrow IPC stream; with ``partition=<JSON>`` all of one partition."""
        tx = self.service.find_for_statement(request.match_info["tid"], sign_of_life=shows_life(request))
        partition = request.query.get("partition")
        rows, parts = await self.service.insert(
            tx,
            request.match_info["table"],
            request.content.iter_any(),
            request.content_length,
            partition=None if partition is None else partition_values(partition),
        )
        self._find(request)
        return answer(InsertResult(rows, parts))

    async def reserve(self, request: web.Request) -> web.Response:
        """Reserve tids for transactions of one request each."""
        asked = await body(request, TidsRequest)
        first = self.service.reserve(asked.count)
        return answer(ReservedTids(str(first), asked.count, self.service.settings.tids_reserved_s), 201)

    async def write(self, request: web.Request) -> web.Response:
        """Insert rows and commit them, as one request; a repetition gets the same answer."""
        content = await _read(request, self.service.settings.write_bytes_max, _BEGIN_INSTEAD)
        return answer(await self.answer_write(content))

    async def answer_write(self, content: bytes) -> CommitAnswer:
        """Insert the rows of a body of POST /commits, commit them, and return the answer."""
        _require_short(len(content), self.service.settings.write_bytes_max, _BEGIN_INSTEAD)
        await self.turnstile.enter()
        head, streams = _decoded(content)
        done = await self.service.write(
            parse_tid(head.tid),
            [(rows.table, stream) for rows, stream in zip(head.rows, streams, strict=True)],
            label=head.label,
            batch=head.batch,
            meta=head.meta,
            progress=head.progress,
            min_csn=None if head.min_csn is None else Csn(head.min_csn),
            wait=parse_wait(head.wait, head.timeout_s),
            timeout_s=head.timeout_s,
        )
        return _committed(head.tid, done)

    async def land(self, request: web.Request) -> web.Response:
        """Take rows of a landing table, as one Arrow IPC stream; answered when they count as written."""
        stream = await _read(request, self.service.settings.write_bytes_max, _LAND_LESS)
        return answer(await self.answer_land(request.match_info["table"], request.query, stream))

    async def answer_land(self, table: str, query: Mapping[str, str], stream: bytes) -> LandAnswer:
        """Take rows of a landing table, with the parameters of POST /landings, and return the answer."""
        _require_short(len(stream), self.service.settings.write_bytes_max, _LAND_LESS)
        await self.turnstile.enter()
        return await self.service.land(
            table,
            stream,
            min_csn=None if (csn := number(query, "min_csn")) is None else Csn(csn),
            timeout_s=seconds(query, "timeout_s"),
        )

    async def commit(self, request: web.Request) -> web.Response:
        """Commit, or repeat the answer of a commit."""
        asked = await body(request, CommitRequest)
        return answer(await self.answer_commit(request.match_info["tid"], asked))

    async def answer_commit(self, tid_text: str, asked: CommitRequest) -> CommitAnswer:
        """Commit the transaction of this tid, and return the answer."""
        wait = parse_wait(asked.wait, asked.timeout_s)
        tid = parse_tid(tid_text)
        done = await self.service.commit(
            tid,
            wait=wait,
            timeout_s=asked.timeout_s,
            label=asked.label,
            batch=asked.batch,
            progress=asked.progress,
        )
        return _committed(str(tid), done)

    async def rollback(self, request: web.Request) -> web.Response:
        """Roll back; harmless when the transaction is rolled back already."""
        tx = self._find(request)
        await self.service.commits.roll_back(tx)
        return answer(EndAnswer(str(tx.tid), tx.state.value))

    async def kill(self, request: web.Request) -> web.Response:
        """Roll back a transaction of any client; this does not renew its lease, and its owner is notified."""
        tx = await self.service.kill(request.match_info["tid"])
        return answer(EndAnswer(str(tx.tid), tx.state.value))

    async def outcome(self, request: web.Request) -> web.Response:
        """Return how a transaction of any replica ended; a committed one once it is applied as requested."""
        tid = parse_tid(request.match_info["tid"])
        asked = request.query.get("wait")
        timeout_s = seconds(request.query, "timeout_s")
        wait = None if asked is None else parse_wait(asked, timeout_s)
        outcome = await self.service.outcome(tid, wait=wait, timeout_s=timeout_s)
        return answer(outcome_answer(tid, outcome))

    async def label(self, request: web.Request) -> web.Response:
        """Return the transaction that is committed under a label; ``tid`` is null for a free label."""
        return answer(await self.service.labels.status(request.match_info["label"]))


def _committed(tid: str, done: Committed | None) -> CommitAnswer:
    csn, time_ms = (done.csn, done.time_ms) if done else (None, None)
    return CommitAnswer(tid, csn, time_ms, "committed")


async def _read(request: web.Request, limit: int, advice: str) -> bytes:
    """Return a whole body; TooLargeError with this advice if it has more bytes than ``limit``."""
    size = request.content_length or 0
    pieces: list[bytes] = []
    if size <= limit:
        size = 0
        async for piece in request.content.iter_any():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                break
    _require_short(size, limit, advice)
    return b"".join(pieces)


def _require_short(size: int, limit: int, advice: str) -> None:
    if size > limit:
        msg = f"the body has {size} bytes or more, the limit is write_bytes_max={limit}; {advice}"
        raise TooLargeError(msg, limit=limit, found=size)


def _decoded(whole: bytes) -> tuple[WriteHead, list[bytes]]:
    try:
        return decode(whole)
    except ValueError as error:  # msgspec's own among them
        msg = (
            f"the body of POST /commits is not as expected: {plain(str(error))}; "
            "docs/protocol.md describes it"
        )
        raise BadRequestError(msg) from error
