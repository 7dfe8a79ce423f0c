"""What calls of the client return."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from tidelock.wire.statements import ChangeResult, InsertResult, RemoveResult
from tidelock.wire.transactions import CommitAnswer

__all__ = [
    "ChangeResult",
    "CommitResult",
    "Decision",
    "InsertResult",
    "LabelStatus",
    "Outcome",
    "RemoveResult",
    "TransactionState",
    "commit_result",
    "instant",
]


class TransactionState(StrEnum):
    """Where a transaction stands, as far as this client knows."""

    #: It takes statements.
    OPEN = "open"
    #: A statement was refused: it takes rollback() only.
    FAILED = "failed"
    #: Its commit was asked for and is not decided, or the answer is not known yet.
    SEALED = "sealed"
    COMMITTED = "committed"
    #: Nothing of it is, or ever will be, visible.
    ROLLED_BACK = "rolled_back"


class Decision(StrEnum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    #: Not decided: its home may still commit it.
    RUNNING = "running"
    #: Older than the outcomes that replicas keep.
    TOO_OLD = "too_old"


@dataclass(frozen=True, slots=True)
class CommitResult:
    """A transaction that is visible from `csn` on, on every replica that has reached it.

    Attributes:
        csn: None for a transaction that changed nothing.
        tid: The transaction.
        time: The commit's effective time, which never runs backwards along the log (UTC); None if `csn` is.
    """

    csn: int | None
    tid: str
    time: datetime | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transaction ended; `csn` and `time` (UTC) of a committed one."""

    tid: str
    decision: Decision
    csn: int | None = None
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class LabelStatus:
    """What is committed under a label.

    Attributes:
        label: The label.
        batch: The newest batch where it is a streaming query's, else None.
        tid: The transaction that committed under it last.
        csn: Of that commit; None where the replica that answered does not know it any more.
        time: Its effective time (UTC); None if `csn` is.
    """

    label: str
    batch: int | None
    tid: str
    csn: int | None
    time: datetime | None


def instant(time_ms: int | None) -> datetime | None:
    """The UTC time for milliseconds since 1970; None for None and for 0, the agents' "not known"."""
    return datetime.fromtimestamp(time_ms / 1000, UTC) if time_ms else None


def commit_result(answer: CommitAnswer) -> CommitResult:
    """Read the answer to a commit."""
    return CommitResult(csn=answer.csn, tid=answer.tid, time=instant(answer.time_ms))
