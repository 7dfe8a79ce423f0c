"""A cache whose entries have weights: the one that was used least recently goes first. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Keeps entries up to a total weight; the newest one stays even if it alone weighs more."""

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._weight = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value of a key, which counts as used now, or None."""
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Keep a value; others go until there is room for it."""
        if (before := self._entries.pop(key, None)) is not None:
            self._weight -= before[1]
        self._entries[key] = value, weight
        self._weight += weight
        while self._weight > self._weight_max and len(self._entries) > 1:
            self._weight -= self._entries.popitem(last=False)[1][1]
