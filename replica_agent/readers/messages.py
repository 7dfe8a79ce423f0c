"""Messages between an agent and its reader processes: one tagged JSON object in each frame. Pure."""

from __future__ import annotations

import msgspec

from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.replica_agent.readers.availability import ReadAvailability

# -- from a reader


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """The reader asks when ``csn`` can be served; :class:`WaitAnswer` with the same ``id`` replies."""

    id: int
    csn: Csn


class CsnRead(msgspec.Struct, frozen=True, tag="read"):
    """``csn`` is read: it may have to be pinned. Sent now and then as long as it is read."""

    csn: Csn


class CorruptPart(msgspec.Struct, frozen=True, tag="corrupt"):
    """The bytes of a part differ from the catalog."""

    part: PartId
    detail: str


class LogError(msgspec.Struct, frozen=True, tag="log"):
    """An error for the agent's log."""

    event: str
    fields: dict[str, str]


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """After :class:`Drain`: no read is running any more."""


# -- to a reader


class WaitAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """The agent's answer to :class:`Wait`."""

    id: int
    availability: ReadAvailability


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Refuse new reads, and send :class:`Drained` when the running ones have ended."""


class Released(msgspec.Struct, frozen=True, tag="released"):
    """A part that the reader may have found damaged is whole."""

    part: PartId


FromReader = Wait | CsnRead | CorruptPart | LogError | Drained
ToReader = WaitAnswer | Drain | Released
