"""The pause before a failed action is repeated."""

from __future__ import annotations

import random

FIRST_WAIT_S = 0.05
#: 2^12 first waits are minutes; beyond that only the caller's maximum matters, and the power stays small.
_DOUBLINGS_MAX = 12


def wait_s(failures: int, max_s: float) -> float:
    """Return the pause after ``failures`` failures in a row: doubling up to ``max_s``, less a random half.

    The random part keeps replicas that failed together from coming back together.
    """
    longest = min(max_s, FIRST_WAIT_S * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS_MAX))
    return longest * random.uniform(0.5, 1.0)
