"""Whose turn it is. Pure."""

from __future__ import annotations

from collections.abc import Collection

from tidelock.csnlog.core.ids import ReplicaId


class RoundRobin:
    """Takes replicas in turn, whoever comes and goes: the one whose last turn was longest ago."""

    def __init__(self) -> None:
        self._last: dict[ReplicaId, int] = {}
        self._count = 0

    def next(self, among: Collection[ReplicaId]) -> ReplicaId:
        """Return one of these, of which there is at least one."""
        chosen = min(sorted(among), key=lambda replica: self._last.get(replica, 0))
        self._count += 1
        self._last[chosen] = self._count
        return chosen
