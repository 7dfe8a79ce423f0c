"""The error that a caller of commit() gets for every decision that is no commit. Pure.

Certainty decides: ``Rejected`` becomes an error that says "certainly not committed". ``Undecided``, and
nothing else, becomes :class:`~tidelock.errors.CommitUnknownError`.
"""

from __future__ import annotations

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.batch import Proposal
from tidelock.csnlog.core.committer_messages import Cause, Rejected, Undecided
from tidelock.csnlog.core.ids import PartId, TableId
from tidelock.errors import (
    CommitUnknownError,
    FencedError,
    HeadMovedError,
    LabelExistsError,
    LabelMovedError,
    MembersChangedError,
    RefusedError,
    TableChangedError,
    TableExistsError,
    TagsMovedError,
    TidelockError,
    TooLargeError,
    TransactionClosedError,
    UnavailableError,
)


def to_error(proposal: Proposal, decision: Rejected | Undecided) -> TidelockError:
    """Return the error for a decision; of a carrier, its detail ``riders`` names those that are concerned."""
    error = _error(proposal, decision)
    if proposal.riders and isinstance(decision, Rejected):
        error.details["riders"] = proposal.riders_at(decision.detail)
    return error


def _error(proposal: Proposal, decision: Rejected | Undecided) -> TidelockError:
    tid = proposal.tid
    if not isinstance(decision, Rejected):
        return CommitUnknownError(
            f"tid {tid}: the commit was sent, its outcome is not known yet; repeat commit() or ask outcome()",
            tid=tid,
        )
    detail = decision.detail
    table = detail.removeprefix(tree.table(TableId("")))
    match decision.cause:
        case Cause.TABLE_CHANGED:
            return TableChangedError(
                f"tid {tid}: the definition of table {table} changed after it was read; begin again",
                tid=tid, table=table,
            )  # fmt: skip
        case Cause.TABLE_EXISTS:
            return TableExistsError(
                f"tid {tid}: table {table} exists already; choose another name", tid=tid, table=table
            )
        case Cause.DECLARED_LOST:
            part = detail.removeprefix(tree.skip(PartId("")))
            return RefusedError(f"tid {tid}: part {part} is declared lost already", tid=tid, part=part)
        case Cause.TAGS_MOVED:
            return TagsMovedError(
                f"tid {tid}: tags or horizon changed after they were read; read them again", tid=tid
            )
        case Cause.LABEL_EXISTS:
            return LabelExistsError(
                f"tid {tid}: label {proposal.label!r} was committed before", tid=tid, label=proposal.label
            )
        case Cause.LABEL_MOVED:
            return LabelMovedError(
                f"tid {tid}: label {proposal.label!r} was moved or deleted after it was read; read it again",
                tid=tid, label=proposal.label,
            )  # fmt: skip
        case Cause.HEAD_MOVED:
            return HeadMovedError(
                f"tid {tid}: another commit came first; validate its read set again", tid=tid
            )
        case Cause.ROSTER_CHANGED:
            return MembersChangedError(
                f"tid {tid}: replicas, disks or copies changed after its copies were counted; count again",
                tid=tid, version=proposal.roster,
            )  # fmt: skip
        case Cause.TOO_LARGE:
            return TooLargeError(f"tid {tid} is too large for one commit: {detail}", tid=tid, limit=detail)
        case Cause.FENCED:
            return FencedError(f"tid {tid}: its home was fenced, so it is aborted; begin again", tid=tid)
        case Cause.QUEUE_FULL:
            return UnavailableError(f"tid {tid}: {detail} commits wait already; try again later", tid=tid)
        case Cause.DEADLINE:
            return UnavailableError(f"tid {tid} was not committed in time; try again", tid=tid)
        case Cause.CALLED_OFF:
            return TransactionClosedError(
                f"tid {tid}: the commit was called off before it had a CSN; begin a new transaction",
                tid=tid, state="rolled_back",
            )  # fmt: skip
        case Cause.STOPPED:
            return UnavailableError(f"tid {tid} was not committed, the log has ended here: {detail}", tid=tid)
