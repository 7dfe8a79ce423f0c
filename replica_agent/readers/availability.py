"""The agent's answer about a CSN that a reader process does not find in the catalog yet. Pure."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from tidelock.csnlog.core.ids import Csn
from tidelock.errors import FencedError, NoSuchCsnError, SnapshotTooOldError, StandbyError, TidelockError

#: ready: applied now. standby: not applied in time, another replica may have it. suspended: unknown at
#: present, another replica may know. beyond: above the end of the log. too_old: below the horizon. fenced:
#: this replica must not speak for the cluster.
Availability = Literal["ready", "standby", "suspended", "beyond", "too_old", "fenced"]

_NAMES: frozenset[str] = frozenset(get_args(Availability))


class ReadAvailability(msgspec.Struct, frozen=True):
    """The agent's answer about one CSN; ``reason`` is shown to the user and says what to do."""

    state: Availability
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse a state that readers do not know: they would have to guess whether rows may be missing."""
        if self.state not in _NAMES:
            msg = f"availability {self.state!r} is not one of {sorted(_NAMES)}"
            raise ValueError(msg)

    def refusal(self, csn: Csn) -> TidelockError | None:
        """Return the error of the reader's answer, or None when the CSN can be served."""
        reason = self.reason or f"CSN {csn}: {self.state}"
        match self.state:
            case "ready":
                return None
            case "standby" | "suspended":
                return StandbyError(reason, csn=csn)
            case "beyond":
                return NoSuchCsnError(reason, csn=csn)
            case "too_old":
                return SnapshotTooOldError(reason, csn=csn)
            case "fenced":
                return FencedError(reason, csn=csn)
