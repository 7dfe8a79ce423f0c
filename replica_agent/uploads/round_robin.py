"""The round robin among replicas. Pure."""

from __future__ import annotations

from collections.abc import Collection

from tidelock.csnlog.core.ids import ReplicaId


class RoundRobin:
    """Chooses replicas in turn, also while members change: the one that was chosen longest ago."""

    def __init__(self) -> None:
        self._last: dict[ReplicaId, int] = {}
        self._count = 0

    def next(self, among: Collection[ReplicaId]) -> ReplicaId:
        """Return one of these replicas; at least one is required."""
        chosen = min(sorted(among), key=lambda replica: self._last.get(replica, 0))
        self._count += 1
        self._last[chosen] = self._count
        return chosen
