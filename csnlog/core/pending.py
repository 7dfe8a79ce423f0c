"""The transactions that wait for their CSN or their outcome: queue, batch, and callers that gave up. Pure.

This is the part of the committer's state that concerns transactions. It decides nothing: the committer
reports the end of a batch to it, and it answers each transaction exactly once, apart from ``Undecided``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from tidelock.csnlog.core.batch import CommitPlan, LogLimits, Proposal, Queued, too_large
from tidelock.csnlog.core.committer_messages import AnswerCallers, Cause, CommitDecision, Rejected, Undecided
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.results import Committed
from tidelock.errors import CorruptError

#: Own commits that are remembered, so that a repeated commit() is answered and not sent. Callers that repeat
#: it later find it in the catalog.
REMEMBERED_MAX: Final = 8192


class SentBatch(msgspec.Struct, frozen=True):
    """Transactions that were sent.

    Attributes:
        plan: Their multi.
        tids: Their tids.
        fence: The fence under which they were sent.
        in_doubt: The multi ended Unknown, so it may have been applied or may still be.
        csn: Their CSN if the follower has met the record before the multi was answered.
    """

    plan: CommitPlan
    tids: frozenset[str]
    fence: int
    in_doubt: bool = False
    csn: Csn | None = None

    @classmethod
    def of(cls, plan: CommitPlan, fence: int) -> SentBatch:
        """Return a batch that is sent now."""
        return cls(plan, frozenset(item.tid for item in plan.batch), fence)

    @property
    def items(self) -> tuple[Queued, ...]:
        """The transactions of the record."""
        return self.plan.batch


class PendingState(msgspec.Struct, frozen=True):
    """The whole state of :class:`Pending` except the answers, which are taken out after every step.

    Attributes:
        queue: Transactions that are certainly not sent, first come first served.
        batch: The transactions that are sent and not answered.
        expired: Tids of the batch whose callers got Undecided.
        called_off: Tids of the batch that clients have called off.
        abandoned: Tids of the batch that was in doubt when the log ended here; only others can decide them.
        remembered: CSNs of the last commits, oldest first, since callers may request a commit again: callers
            that gave up, and clients whose HTTP answer was lost.
    """

    queue: tuple[Queued, ...]
    batch: SentBatch | None
    expired: frozenset[str]
    called_off: frozenset[str]
    abandoned: frozenset[str]
    remembered: tuple[tuple[str, Csn], ...]


class Pending:
    """All transactions of this replica between commit() and their CSN.

    The fields are those of :class:`PendingState`; ``answers`` are the answers that are to be sent.
    """

    __slots__ = (
        *("abandoned", "answers", "batch", "called_off", "expired", "home", "limits", "queue"),
        "remembered",
    )

    def __init__(self, home: ReplicaId, limits: LogLimits) -> None:
        self.home: Final = home
        self.limits: Final = limits
        self.queue: dict[str, Queued] = {}  # by tid, first come first served
        self.batch: SentBatch | None = None
        self.expired: frozenset[str] = frozenset()
        self.called_off: frozenset[str] = frozenset()
        self.abandoned: frozenset[str] = frozenset()
        # Not a dict: to find the oldest entry of one that loses its oldest entries takes longer and longer.
        self.remembered: OrderedDict[str, Csn] = OrderedDict()
        self.answers: list[AnswerCallers] = []

    def snapshot(self) -> PendingState:
        """Return the whole state except ``answers``."""
        remembered = tuple(self.remembered.items())
        return PendingState(
            queue=tuple(self.queue.values()),
            batch=self.batch,
            expired=self.expired,
            called_off=self.called_off,
            abandoned=self.abandoned,
            remembered=remembered,
        )

    def restore(self, state: PendingState) -> None:
        """Go back to a state that :meth:`snapshot` has returned."""
        self.queue, self.batch = {item.tid: item for item in state.queue}, state.batch
        self.expired, self.called_off = state.expired, state.called_off
        self.abandoned = state.abandoned
        self.remembered = OrderedDict(state.remembered)

    @property
    def sent(self) -> frozenset[str]:
        """The tids of the batch."""
        return self.batch.tids if self.batch is not None else frozenset()

    def decides(self, tid: str) -> bool:
        """Return whether the outcome of this tid is still to be decided here.

        It is decided when the follower has met its record, although its multi may not be answered yet.
        """
        return tid in self.queue or (self.batch is not None and self.batch.csn is None and tid in self.sent)

    def propose(self, proposal: Proposal, end: Rejected | None) -> None:
        """Queue a transaction; a transaction known already is answered, or joins the one under way.

        Args:
            proposal: The transaction.
            end: The decision on new transactions where this replica commits no more.
        """
        tid = proposal.tid
        if tid in self.remembered:
            self.answer(tid, Committed(self.remembered[tid]))
            return
        if tid in self.abandoned:
            self.answer(tid, Undecided())
            return
        if self.batch is not None and tid in self.sent:
            self.expired -= {tid}
            if self.batch.csn is not None:
                self.answer(tid, Committed(self.batch.csn))
            return
        if tid in self.queue:
            return
        if end is not None:
            self.answer(tid, end)
            return
        if len(self.queue) >= self.limits.queue_tids_max:
            self.answer(tid, Rejected(Cause.QUEUE_FULL, str(self.limits.queue_tids_max)))
            return
        item = Queued.of(proposal)
        if excess := too_large(item, self.home, self.limits):
            limit, most, found = excess
            self.answer(tid, Rejected(Cause.TOO_LARGE, f"{limit} is {most} bytes, found {found}"))
            return
        self.queue[tid] = item

    def expire(self, tid: str) -> None:
        """Stop waiting for this tid: drop it if it is not sent; keep it until it is decided if it is sent."""
        if self.queue.pop(tid, None) is not None:
            self.answer(tid, Rejected(Cause.DEADLINE))
        elif self.batch is not None and self.batch.csn is None and tid in self.sent - self.expired:
            self.expired |= {tid}
            self.answer(tid, Undecided())

    def call_off(self, tid: str) -> None:
        """Do not commit this tid if it can still be helped: drop it if it is not sent, or not sent again.

        A tid that is sent is answered when the store has answered. One that is not here changes nothing.
        """
        if self.queue.pop(tid, None) is not None:
            self.answer(tid, Rejected(Cause.CALLED_OFF))
        elif self.batch is not None and self.batch.csn is None and tid in self.sent:
            self.called_off |= {tid}

    def send(self, batch: SentBatch) -> None:
        """Move transactions from the queue into the batch."""
        for tid in batch.tids:
            self.queue.pop(tid, None)
        self.batch = batch

    def doubt(self) -> None:
        """Note that the multi of the batch ended Unknown; if the follower has met it, nothing is in doubt."""
        if self.batch is not None:
            self.batch = replace(self.batch, in_doubt=True) if self.batch.csn is None else None

    def landed(self, csn: Csn) -> None:
        """Note that the whole batch is in the log at this CSN, as one record. Its multi may still end.

        Raises:
            CorruptError: The batch is known to be in the log at another CSN.
        """
        batch = self.batch
        assert batch is not None, "a batch has landed that was not sent"
        if batch.csn is not None:
            if batch.csn != csn:
                raise CorruptError(
                    f"the multi says CSN {csn}, the log says CSN {batch.csn} of the same batch"
                )
            return
        self.expired = self.called_off = frozenset()
        self.batch = None if batch.in_doubt else replace(batch, csn=csn)
        for item in batch.items:
            self._committed(item.tid, csn)

    def landed_if_in(self, records: Mapping[str, Csn]) -> bool:
        """Return whether the batch is among these tids, and note its CSN; CorruptError if it has several."""
        csns = {records[tid] for tid in self.sent if tid in records}
        if len(csns) > 1:
            raise CorruptError(f"the tids of one batch are in the log at several CSNs: {sorted(csns)}")
        for csn in csns:
            self.landed(csn)
        return bool(csns)

    def met(self, records: Mapping[str, Csn]) -> None:
        """Note own tids that the follower has met in the log, which may precede the answer to the multi.

        A tid that is in the log must never be sent again, however it got there, so the queue is searched too.
        """
        if self.batch is not None and self.batch.csn is None:
            self.landed_if_in(records)
        for tid in sorted(tid for tid in records if tid in self.queue):
            del self.queue[tid]
            self._committed(tid, records[tid])

    def requeue(self, rejected: Mapping[str, Rejected]) -> None:
        """Reject these tids and put the others first in the queue: the batch was certainly not applied.

        Tids that were called off, or whose callers have given up, are not sent again; this decides them.
        """
        assert self.batch is not None, "a batch was not applied that was not sent"
        gone = {tid: Rejected(Cause.DEADLINE) for tid in sorted(self.expired)}
        gone |= {tid: Rejected(Cause.CALLED_OFF) for tid in sorted(self.called_off)} | dict(rejected)
        self.queue = {item.tid: item for item in self.batch.items if item.tid not in gone} | self.queue
        self.batch, self.expired, self.called_off = None, frozenset(), frozenset()
        for tid, decision in gone.items():
            self.answer(tid, decision)

    def drop(self, decision: Rejected) -> None:
        """End everything: what is sent stays undecided here forever, what waits gets this decision."""
        if self.batch is not None and self.batch.csn is None:
            self.abandoned = self.sent
            for tid in sorted(self.sent - self.expired):
                self.answer(tid, Undecided())
        self.batch, self.expired, self.called_off = None, frozenset(), frozenset()
        queue, self.queue = self.queue, {}
        for tid in queue:
            self.answer(tid, decision)

    def _committed(self, tid: str, csn: Csn) -> None:
        self.remembered[tid] = csn
        if len(self.remembered) > REMEMBERED_MAX:
            self.remembered.popitem(last=False)
        self.answer(tid, Committed(csn))

    def answer(self, tid: str, decision: CommitDecision) -> None:
        """Add the answer to a transaction."""
        self.answers.append(AnswerCallers(tid, decision))

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is one that no correct history leads to."""
        self.check_step()
        twice = self.sent & self.queue.keys()
        assert not twice, f"both sent and in line: {sorted(twice)}"
        assert all(item.tid == tid for tid, item in self.queue.items()), "a transaction under another tid"
        assert self.expired <= self.sent, f"expired {self.expired} outside the batch {self.sent}"
        assert self.called_off <= self.sent, f"called off {self.called_off} outside the batch {self.sent}"

    def check_step(self) -> None:
        """Raise AssertionError for a contradiction that can be seen in constant time."""
        batch, queue_max = self.batch, self.limits.queue_tids_max + self.limits.batch_tids_max
        assert len(self.queue) <= queue_max, f"{len(self.queue)} in line, at most {queue_max} expected"
        assert batch is not None or not self.expired, "tids have expired that are in no batch"
        assert batch is not None or not self.called_off, "tids were called off that are in no batch"
        assert batch is None or not batch.in_doubt or batch.csn is None, "in doubt, but its CSN is known"
