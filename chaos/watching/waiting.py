"""Waiting for something to become visible, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tidelock.errors import UnavailableError

#: How long a node may need for a step of its operator, in seconds, on a busy machine.
STEP_TIMEOUT_S: Final = 300.0
#: How long others may need to notice a fault, in seconds: several sessions of ZooKeeper.
NOTICE_TIMEOUT_S: Final = 60.0
INTERVAL_S: Final = 0.1


def comes_true(condition: Callable[[], object], timeout_s: float) -> bool:
    """Return whether a condition comes true in this time; it is asked at least once."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(INTERVAL_S)
    return True


def until(condition: Callable[[], object], *, what: str, timeout_s: float = STEP_TIMEOUT_S) -> None:
    """Wait until a condition is true; UnavailableError, which names it, if it is not in this time."""
    if not comes_true(condition, timeout_s):
        raise UnavailableError(f"expected {what} within {timeout_s:.0f} s, and it is not so")
