"""The decision whether a transaction may commit under a label, and how the multi makes or moves it. Pure.

A label is a *stream's* label (it names the last batch of a streaming query, and moves upwards with each
batch) or a *plain* label (made once), as long as its znode exists. A read alone decides nothing: the multi
creates the label, or sets it at the version that was read. So of two transactions that read the same version
one is refused and judges again. A deleted label that is created again has version 0. So a move also checks
that no stream's label was deleted since the read: a deletion raises the version of ``labels`` itself.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidelock.csnlog.core.model import LabelState

#: Labels that begin so are the cluster's own: rows that landed count once, however many replicas bring them.
LANDING: Final = "landing/"


def landing_label(tid: str) -> str:
    """Return the label under which the rows of an aborted landing are committed again."""
    return LANDING + tid


def landed_tid(label: str | None) -> str | None:
    """Return the landing whose rows a commit under this label brings; None if it brings none."""
    return label.removeprefix(LANDING) if label is not None and label.startswith(LANDING) else None


class LabelRead(msgspec.Struct, frozen=True):
    """A label as it was read.

    Attributes:
        state: Its data; None = the label does not exist.
        version: Data version of its znode.
        deletions: Data version of ``labels``, read before the label in the same session.
    """

    state: LabelState | None
    version: int = 0
    deletions: int = 0


class Move(msgspec.Struct, frozen=True):
    """Move a stream's label upwards; the multi checks both versions."""

    version: int
    deletions: int


class Make(msgspec.Struct, frozen=True):
    """Create the label."""


class Taken(msgspec.Struct, frozen=True):
    """The label was committed before: the plain label, this batch, or a later batch of the stream."""

    state: LabelState


class OtherKind(msgspec.Struct, frozen=True):
    """A batch was requested under a plain label, or a plain commit under a stream's label."""

    state: LabelState


def judge(batch: int | None, found: LabelRead) -> Make | Move | Taken | OtherKind:
    """Judge a transaction that wants to commit under a label, by the label as it was read.

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
