"""Waiting for a condition, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

#: Generous, since tests share the machine; a condition that holds is noticed at once.
TIMEOUT_S: Final = 60.0
INTERVAL_S: Final = 0.02

T = TypeVar("T")


def eventually(condition: Callable[[], T], *, timeout_s: float = TIMEOUT_S, what: str = "the condition") -> T:
    """Call `condition` until its result is true, and return that; AssertionError if it never is."""
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true in {timeout_s:.0f} s; last result: {result!r}")
        time.sleep(INTERVAL_S)
    return result
