"""Replicas that did not answer, as all tasks of one Python process know them.

Spark keeps the Python processes of its executors and runs task after task in them. Each task begins with the
replica that its plan prefers. If each had to find out by itself that this one is frozen, a job of many tasks
would wait as often.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

#: For so long a replica that did not answer is asked after all others, in seconds.
AVOIDED_S: Final = 30.0

#: When each may be asked first again, by its address (`time.monotonic`). Only one value of a dict is read or
#: written at a time, so threads need no lock.
_until_s: dict[str, float] = {}


def note(address: str) -> None:
    """Record that a replica did not answer."""
    _until_s[address] = time.monotonic() + AVOIDED_S


def last(addresses: Iterable[str]) -> list[str]:
    """Return addresses in their order, those that did not answer behind all others."""
    now = time.monotonic()
    return sorted(addresses, key=lambda address: _until_s.get(address, 0.0) > now)


def forget() -> None:
    """Forget all, as a new process does; for tests."""
    _until_s.clear()
