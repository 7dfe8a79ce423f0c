"""Patience of tasks: what replicas run in their SQL processes has to wait until one of these is free."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import tenacity

from tidelock.errors import UnavailableError

T = TypeVar("T")

#: How long a task waits for a replica that has a free SQL process, in seconds.
PATIENCE_S: Final = 300.0


def patiently(attempt: Callable[[], T]) -> T:
    """Call again while no replica is available, for a while; for calls that may be carried out twice.

    Raises:
        UnavailableError: That of the last attempt.
    """
    deadline = time.monotonic() + PATIENCE_S
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(UnavailableError),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
        stop=lambda _: time.monotonic() >= deadline,
        reraise=True,
    )
    return retrying(attempt)
