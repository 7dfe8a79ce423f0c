"""The horizon: below it no snapshot is promised, so parts removed there may be deleted. Pure.

Any agent may raise ``csn/horizon``, at most to the smallest of

* the CSN of every pin: the promises to clients on every replica;
* the CSN of every tag: a promise of all replicas that needs no process (rule tags);
* ``progress.oldest`` of every replica that is neither struck nor removed: the oldest S of its live
  transactions and snapshots, at most its snapshot CSN. So it also bounds the transactions that begin there
  later, and the parts that a lagging replica may still have to apply or fetch;
* the CSN that was the newest one ``history_retention_s`` ago.

A pin has expired when the version of its znode did not change for its ttl by the monotonic clock of the
observer (F20). The pin is deleted at that version: a renewal that arrives meanwhile saves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from tidelock.csnlog.core import codec
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.model import PinState, Progress
from tidelock.csnlog.core.store import Node


class Bound(msgspec.Struct, frozen=True):
    """A bound of the horizon: its cause and its CSN.

    Attributes:
        csn: The horizon may rise to it, not above it.
        kind: ``pin``; ``tag``; ``oldest``: live transactions or snapshots of a replica, or that it has
            applied no more; ``retention``; ``asked``: no higher horizon was requested.
        name: Id of the pin or of the replica, or the tag.
    """

    csn: Csn
    kind: Literal["pin", "tag", "oldest", "retention", "asked"]
    name: str = ""


def bounds(
    pins: Mapping[str, Csn],
    progress: Mapping[ReplicaId, Progress],
    *,
    kept: Bound,
    tags: Mapping[str, Csn],
) -> Sequence[Bound]:
    """Return all bounds of the horizon, the lowest first.

    Args:
        pins: CSNs of the pins, by id.
        progress: The published progress of the replicas that are neither struck nor removed.
        kept: The bound of history that is kept even if it is not used.
        tags: CSNs of the tags, by name.
    """
    found = [
        *(Bound(csn, "pin", pin) for pin, csn in pins.items()),
        *(Bound(csn, "tag", name) for name, csn in tags.items()),
        *(Bound(one.oldest, "oldest", replica) for replica, one in progress.items()),
        kept,
    ]
    return sorted(found, key=lambda bound: (bound.csn, bound.kind, bound.name))


def collectable(removal_csn: Csn | None, horizon: Csn) -> bool:
    """Return whether a part may be deleted: no promised S and no live S sees it.

    A snapshot S sees a part until its removal; S is at least the horizon. The creation of the part does not
    matter (rule horizon; created at 5, removed at 20, read at 10).
    """
    return removal_csn is not None and removal_csn <= horizon


@dataclass(slots=True)
class _Seen:
    state: PinState
    version: int
    since: float


class PinWatch:
    """The pins as one observer has seen them. Pure: the time is the caller's.

    CSN and ttl of a pin never change; its version shows renewals. So a pin is read when it is new, and
    again when its ttl has passed since its version was last seen to change.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    @property
    def csns(self) -> dict[str, Csn]:
        """CSNs of the pins, by id."""
        return {pin: seen.state.csn for pin, seen in self._seen.items()}

    def listed(self, names: Iterable[str], now: float) -> list[str]:
        """Process a list of the existing pins; return the pins that have to be read."""
        present = set(names)
        self._seen = {pin: seen for pin, seen in self._seen.items() if pin in present}
        return sorted(pin for pin in present if pin not in self._seen or self._is_over(pin, now))

    def read(self, pin: str, node: Node, now: float) -> None:
        """Process the data of a pin's znode. An older version than before comes from a lagging server."""
        known = self._seen.get(pin)
        if known is None or node.version > known.version:
            self._seen[pin] = _Seen(codec.decode_pin(node.data), node.version, now)

    def gone(self, pin: str) -> None:
        """Note that a pin does not exist any more."""
        self._seen.pop(pin, None)

    def expired(self, now: float) -> dict[str, int]:
        """Return the versions of the pins that are not renewed, read since :meth:`listed` at ``now``."""
        return {pin: seen.version for pin, seen in self._seen.items() if self._is_over(pin, now)}

    def _is_over(self, pin: str, now: float) -> bool:
        seen = self._seen[pin]
        return now - seen.since > seen.state.ttl_s
