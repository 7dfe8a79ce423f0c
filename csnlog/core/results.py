"""Results as types: what is known after a call to the store, and what is known of a transaction. Pure.

A store call ends :class:`Ok`, :class:`Refused` (certainly not applied) or :class:`Unknown` (may have been
applied, or may still be). No other result leaves the store, and an answer that is not recognised is Unknown
(rule unknown).
"""

from __future__ import annotations

import enum
from typing import Generic, TypeVar

import msgspec

from tidelock.csnlog.core.ids import Csn

T = TypeVar("T")


class Reason(enum.Enum):
    """The reason of a refusal by the store."""

    BAD_VERSION = "bad_version"
    NO_NODE = "no_node"
    NODE_EXISTS = "node_exists"
    NOT_EMPTY = "not_empty"
    TOO_LARGE = "too_large"
    NOT_CONNECTED = "not_connected"
    DENIED = "denied"


class Ok(msgspec.Struct, Generic[T], frozen=True):
    """The call was applied; ``value`` is its answer."""

    value: T


class Refused(msgspec.Struct, frozen=True):
    """The call certainly changed nothing. ``index`` is the refused element of a multi."""

    reason: Reason
    index: int = 0


class Unknown(msgspec.Struct, frozen=True):
    """The call may have been applied, or may still be. ``cause`` is for people only; decide nothing by it."""

    cause: str


class Committed(msgspec.Struct, frozen=True):
    """The transaction is visible from ``csn`` on.

    ``time_ms`` is the effective wall time (Unix, ms), 0 where the record is not applied yet.
    """

    csn: Csn
    time_ms: int = 0


class Aborted(msgspec.Struct, frozen=True):
    """The transaction never became and never will become visible."""


class Running(msgspec.Struct, frozen=True):
    """The transaction is not decided: its home may still commit it.

    It may also be committed while the replica that answers has not applied its record yet.
    """


class TooOld(msgspec.Struct, frozen=True):
    """The transaction is older than the outcomes that are kept.

    ``floor`` is the oldest snapshot CSN still answered.
    """

    floor: Csn


class CommittedUnseen(msgspec.Struct, frozen=True):
    """The home says that its transaction is committed; this replica has not seen the record with its CSN."""


class NotMine(msgspec.Struct, frozen=True):
    """The replica that was asked cannot answer.

    The transaction belongs to another home or to another boot of this one, or its outcome is older than the
    outcomes that are kept there.
    """


class NeverBegun(msgspec.Struct, frozen=True):
    """The home says that it has begun no such transaction in its present boot."""


class NoAnswer(msgspec.Struct, frozen=True):
    """The home gave no answer in time."""


class LogReading(msgspec.Struct, frozen=True):
    """One search in ZooKeeper for a transaction: first its home's session znode, then the log to its end.

    Attributes:
        boot: The boot of the home when the session znode was read; None if no replica has that name.
        commit: The commit of the transaction in a record that was read, or that was taken and not applied;
            None if no such record contains it. It may still be in the catalog.
        end: The end of the log when it was read; None: it was not looked at.
    """

    boot: int | None
    commit: Committed | None
    end: Csn | None = None


#: The end of a transaction, as any caller may learn it.
Outcome = Committed | Aborted | Running | TooOld
#: The knowledge of a home about its own transaction, without asking another replica.
OwnOutcome = Committed | Aborted | Running | NotMine | NeverBegun
#: The same knowledge as another replica receives it, if it receives an answer.
HomeAnswer = CommittedUnseen | Aborted | Running | NotMine | NeverBegun
