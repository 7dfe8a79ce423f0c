"""Results as types: what is known after a call to the store, and what is known of a transaction. Pure.

A store call ends :class:`Ok`, :class:`Refused` (certainly not applied) or :class:`Unknown` (may have been
applied, or may still be). Nothing else crosses the store's border, and anything not recognised is Unknown
(rule unknown).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidelock.csnlog.core.ids import Csn

T = TypeVar("T")


class Reason(enum.Enum):
    """Why the store refused."""

    BAD_VERSION = "bad_version"
    NO_NODE = "no_node"
    NODE_EXISTS = "node_exists"
    NOT_EMPTY = "not_empty"
    TOO_LARGE = "too_large"
    NOT_CONNECTED = "not_connected"
    DENIED = "denied"


@dataclass(frozen=True, slots=True)
class Ok(Generic[T]):
    """The call was applied; ``value`` is its answer."""

    value: T


@dataclass(frozen=True, slots=True)
class Refused:
    """The call certainly changed nothing. ``index`` is the refused element of a multi."""

    reason: Reason
    index: int = 0


@dataclass(frozen=True, slots=True)
class Unknown:
    """The call may have been applied, or may still be. ``cause`` is for people only; decide nothing by it."""

    cause: str


@dataclass(frozen=True, slots=True)
class Committed:
    """The transaction is visible from ``csn`` on.

    ``time_ms`` is the effective wall time (Unix, ms), 0 where the record is not applied yet.
    """

    csn: Csn
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class Aborted:
    """The transaction never became and never will become visible."""


@dataclass(frozen=True, slots=True)
class Running:
    """The transaction is not decided: its home may still commit it."""


@dataclass(frozen=True, slots=True)
class TooOld:
    """The transaction is older than the outcomes that are kept.

    ``floor`` is the oldest snapshot CSN still answered.
    """

    floor: Csn


Outcome = Committed | Aborted | Running | TooOld
