"""Retries of tasks: a request that replicas run in their SQL processes waits until a process is free."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tidelock.client.agents.repetition import repeat
from tidelock.client.agents.transport import Timeouts
from tidelock.client.agents.waits import Waits
from tidelock.errors import UnavailableError

T = TypeVar("T")

#: Time that a task waits for a replica with a free SQL process, in seconds.
RETRY_TIMEOUT_S: Final = 300.0


def retry_while_unavailable(attempt: Callable[[], T]) -> T:
    """Call `attempt` until it succeeds, for up to `RETRY_TIMEOUT_S`; the call must be safe to repeat.

    Raises:
        UnavailableError: The error of the last attempt.
    """
    deadline = time.monotonic() + RETRY_TIMEOUT_S
    return repeat(
        attempt,
        UnavailableError,
        deadline=deadline,
        waits=Waits(Timeouts().wait_log_s),
        what="a replica with a free SQL process",
        first_s=0.1,
        max_s=5.0,
    )
