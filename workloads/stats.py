"""Statistics of measured values. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` (0 to 1) of all values do not exceed.

    ValueError if no values are given.
    """
    if not values or not 0 <= share <= 1:
        raise ValueError(f"no percentile {share} of {len(values)} values")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of positive ratios; ValueError if no ratios are given."""
    if not ratios or min(ratios) <= 0:
        raise ValueError(f"no geometric mean of {list(ratios)}")
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


@dataclass(frozen=True, slots=True)
class Latencies:
    """Summary of the durations of operations, in ms."""

    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latencies:
        """Summarise durations in seconds; ValueError if no durations are given."""
        return cls(*(round(percentile(seconds, share) * 1000, 2) for share in (0.5, 0.99, 1.0)))


def reached(moments: Sequence[tuple[float, int]], csn: int) -> float | None:
    """Return the time at which a replica reached ``csn``, from its moments (time, CSN) in order, or None."""
    low, high = 0, len(moments)
    while low < high:
        middle = (low + high) // 2
        if moments[middle][1] >= csn:
            high = middle
        else:
            low = middle + 1
    return moments[low][0] if low < len(moments) else None
