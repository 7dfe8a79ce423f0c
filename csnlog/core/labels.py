"""Whether a transaction may commit under a label, and how the commit multi makes or moves it. Pure.

Pure. A label is a *stream's* (it names the last batch of a streaming query, and moves upwards with each) or
*plain* (made once), for as long as its znode stands. What is read decides nothing by itself: the multi
creates the label, or sets it at the version that was read, so of two who read the same one is refused and
judges again. Deleted labels are made anew at version 0, so a move also checks that no stream's label was
deleted since the read: that raises the version of ``labels`` itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelock.csnlog.core.model import LabelState


@dataclass(frozen=True, slots=True)
class LabelRead:
    """A label as it was read.

    Attributes:
        state: What it says; None = there is none.
        version: Data version of its znode.
        deletions: Data version of ``labels``, read before the label in the same session.
    """

    state: LabelState | None
    version: int = 0
    deletions: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """Take a stream's label further: both versions are checked by the multi."""

    version: int
    deletions: int


@dataclass(frozen=True, slots=True)
class Make:
    """Create the label."""


@dataclass(frozen=True, slots=True)
class Taken:
    """It was committed before: the plain label, this batch, or a later one of the stream."""

    state: LabelState


@dataclass(frozen=True, slots=True)
class OtherKind:
    """A batch was asked of a plain label, or a plain commit of a stream's."""

    state: LabelState


def judge(batch: int | None, found: LabelRead) -> Make | Move | Taken | OtherKind:
    """Judge a transaction that wants to commit under a label, by what was read of it.

    Args:
        batch: Number of the batch, or None for a plain label.
        found: The label.
    """
    state = found.state
    if state is None:
        return Make()
    if (batch is None) != (state.batch is None):
        return OtherKind(state)
    if batch is None or state.batch is None or batch <= state.batch:
        return Taken(state)
    return Move(found.version, found.deletions)
