"""The horizon: below it no snapshot is promised, so what was removed there may be deleted. Pure.

Any agent may raise ``csn/horizon``, at most to the smallest of

* the CSN of every pin: what clients were promised on every replica;
* ``progress.oldest`` of every replica that is neither struck nor removed: the oldest S of its live
  transactions and snapshots, at most its snapshot CSN. So it bounds what begins there later as well, and what
  a replica that lags may still have to apply or fetch;
* the CSN that was the newest one ``history_retention_s`` ago.

A pin has expired when the version of its znode did not change for its ttl by the monotonic clock of the one
who looks (F20). It is deleted with that version: a renewal that came meanwhile saves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tidelock.csnlog.core import codec
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.model import PinState, Progress
from tidelock.csnlog.core.store import Node


@dataclass(frozen=True, slots=True)
class Bound:
    """What holds the horizon back, at which CSN.

    Attributes:
        csn: The horizon may rise to it, not above it.
        kind: ``pin``; ``oldest``: live transactions or snapshots of a replica, or that it has applied no
            more; ``retention``; ``asked``: nobody wanted more.
        name: Id of the pin, or of the replica.
    """

    csn: Csn
    kind: Literal["pin", "oldest", "retention", "asked"]
    name: str = ""

    def describe(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"csn": self.csn, "kind": self.kind, "name": self.name}


def bounds(
    pins: Mapping[str, Csn], progress: Mapping[ReplicaId, Progress], *, kept: Bound
) -> Sequence[Bound]:
    """Return all that bounds the horizon, the lowest first.

    Args:
        pins: CSNs of the pins, by id.
        progress: What the replicas have published that are neither struck nor removed.
        kept: History that is kept whether anybody uses it or not.
    """
    found = [
        *(Bound(csn, "pin", pin) for pin, csn in pins.items()),
        *(Bound(one.oldest, "oldest", replica) for replica, one in progress.items()),
        kept,
    ]
    return sorted(found, key=lambda bound: (bound.csn, bound.kind, bound.name))


def collectable(removal_csn: Csn | None, horizon: Csn) -> bool:
    """Tell whether a part may be deleted: no S that is promised, none that lives, sees it.

    A snapshot S sees a part until its removal; S is at least the horizon. When the part was created does not
    matter (rule horizon; created at 5, removed at 20, read at 10).
    """
    return removal_csn is not None and removal_csn <= horizon


@dataclass(slots=True)
class _Seen:
    state: PinState
    version: int
    since: float


class PinWatch:
    """What one observer has seen of the pins. Pure: the time is the caller's.

    CSN and ttl of a pin never change, its version tells of renewals. So a pin is read when it is new, and
    again when its ttl has passed since its version was last seen to change.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    @property
    def csns(self) -> dict[str, Csn]:
        """CSNs of the pins, by id."""
        return {pin: seen.state.csn for pin, seen in self._seen.items()}

    def listed(self, names: Iterable[str], now: float) -> list[str]:
        """Take the names that are there; returns those to be read."""
        present = set(names)
        self._seen = {pin: seen for pin, seen in self._seen.items() if pin in present}
        return sorted(pin for pin in present if pin not in self._seen or self._is_over(pin, now))

    def read(self, pin: str, node: Node, now: float) -> None:
        """Take what a pin's znode holds. An older version than before comes from a server that lags."""
        known = self._seen.get(pin)
        if known is None or node.version > known.version:
            self._seen[pin] = _Seen(codec.decode_pin(node.data), node.version, now)

    def gone(self, pin: str) -> None:
        """Take that a pin is not there any more."""
        self._seen.pop(pin, None)

    def expired(self, now: float) -> dict[str, int]:
        """Versions of the pins that nobody renews, read since :meth:`listed` at ``now``."""
        return {pin: seen.version for pin, seen in self._seen.items() if self._is_over(pin, now)}

    def _is_over(self, pin: str, now: float) -> bool:
        seen = self._seen[pin]
        return now - seen.since > seen.state.ttl_s
