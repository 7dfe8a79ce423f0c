"""The values that the calls of the client return."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from tidelock.wire.rows import instant
from tidelock.wire.statements import ChangeResult, InsertResult, RemoveResult, RestoreResult
from tidelock.wire.transactions import CommitAnswer, TransactionInfo

__all__ = [
    "ChangeResult",
    "ChangedRows",
    "CommitResult",
    "Decision",
    "InsertResult",
    "LabelStatus",
    "LandResult",
    "Outcome",
    "RemoveResult",
    "TableChange",
    "TransactionAtHome",
    "TransactionState",
    "commit_result",
]


class TransactionState(StrEnum):
    """The state of a transaction, as far as this client knows."""

    #: The transaction accepts statements.
    OPEN = "open"
    #: A statement was refused: the transaction accepts rollback() only.
    FAILED = "failed"
    #: Its commit was requested and is not decided, or the answer is not known yet.
    SEALED = "sealed"
    COMMITTED = "committed"
    #: No change of the transaction is, or ever will be, visible.
    ROLLED_BACK = "rolled_back"


class Decision(StrEnum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    #: Not decided: its home may still commit it.
    RUNNING = "running"
    #: The transaction is older than the outcomes that replicas keep.
    TOO_OLD = "too_old"


@dataclass(frozen=True, slots=True)
class CommitResult:
    """A transaction that is visible from `csn` on, on every replica that has reached it.

    Attributes:
        csn: None for a transaction that changed nothing.
        tid: The transaction.
        time: The commit's effective time, which never decreases along the log (UTC); None if `csn` is None.
        rows_inserted: Rows that its statements have inserted, as far as this object has sent them: not those
            of processes that have joined the transaction. A row that replaces another one by a unique key
            counts as inserted.
        rows_updated: Rows to which they have given new values.
        rows_deleted: Rows that they have removed from their table; those of a moved partition count as
            inserted, too.
    """

    csn: int | None
    tid: str
    time: datetime | None
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0

    def counting(self, changed: ChangedRows) -> CommitResult:
        """Return the same commit with the numbers of rows of its statements."""
        return replace(
            self,
            rows_inserted=changed.inserted,
            rows_updated=changed.updated,
            rows_deleted=changed.deleted,
        )


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """The numbers of rows that the statements of a transaction have changed so far."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def after(self, result: object) -> ChangedRows:
        """Return the numbers after one more statement, by its result; unchanged after one that only reads."""
        match result:
            case InsertResult(rows=rows):
                return replace(self, inserted=self.inserted + rows)
            case RemoveResult(rows=rows):
                return replace(self, deleted=self.deleted + rows)
            case RestoreResult(rows_removed=gone, rows_restored=back):
                return replace(self, inserted=self.inserted + back, deleted=self.deleted + gone)
            case ChangeResult():
                return ChangedRows(
                    self.inserted + result.rows_inserted,
                    self.updated + result.rows_updated,
                    self.deleted + result.rows_deleted,
                )
            case _:
                return self


@dataclass(frozen=True, slots=True)
class LandResult:
    """Rows of a landing table that are written.

    Attributes:
        rows: Their number.
        csn: The newest commit that brought some of them; None if they are durable and not visible yet.
    """

    rows: int
    csn: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transaction ended; `csn` and `time` (UTC) of a committed one."""

    tid: str
    decision: Decision
    csn: int | None = None
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class LabelStatus:
    """The newest commit under a label.

    Attributes:
        label: The label.
        batch: The newest batch if the label belongs to a streaming query, else None.
        tid: The transaction that committed under the label last.
        csn: CSN of that commit; None if the replica that answered does not know it any more.
        time: Effective time of that commit (UTC); None if `csn` is None.
        progress: The text that the commit keeps with the label; None if it keeps none.
    """

    label: str
    batch: int | None
    tid: str
    csn: int | None
    time: datetime | None
    progress: str | None = None


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Files that were written from a snapshot: how many, their rows, their bytes."""

    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TableChange:
    """The newest change of a table.

    Attributes:
        table: Full name of the table.
        csn: CSN of the commit.
        time: Effective time of that commit (UTC); None if the replica that answers does not know it.
    """

    table: str
    csn: int
    time: datetime | None


class TransactionAtHome(TransactionInfo, frozen=True, kw_only=True):
    """A transaction as its home shows it, with the `home`."""

    home: str


def commit_result(answer: CommitAnswer) -> CommitResult:
    """Read the answer to a commit."""
    return CommitResult(csn=answer.csn, tid=answer.tid, time=instant(answer.time_ms))
