"""A cache with weights: what was used least recently goes first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelock.replica_agent.readers.lru import LruCache


def test_what_was_used_least_recently_goes() -> None:
    """A look counts as a use."""
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_a_heavy_entry_stays_alone() -> None:
    """Otherwise it would be made again for each request."""
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2, weight=100)
    assert [cache.get(key) for key in "ab"] == [None, 2]
    cache.put("c", 3)
    assert [cache.get(key) for key in "bc"] == [None, 3]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4))), st.integers(1, 8))
def test_the_weight_never_passes_the_bound(puts: list[tuple[int, int]], weight_max: int) -> None:
    """A key that is put again has its last weight, and all that is kept fits, but for a single entry."""
    cache: LruCache[int, int] = LruCache(weight_max)
    weights: dict[int, int] = {}
    for key, weight in puts:
        cache.put(key, weight, weight)
        weights.pop(key, None)
        weights[key] = weight
        while sum(weights.values()) > weight_max and len(weights) > 1:
            del weights[next(iter(weights))]
    assert {key: cache.get(key) for key in range(6)} == {key: weights.get(key) for key in range(6)}
