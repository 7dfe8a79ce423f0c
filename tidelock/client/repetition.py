"""Repetition of a call that fails for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import tenacity

T = TypeVar("T")


def repeat(
    call: Callable[[], T],
    errors: type[Exception] | tuple[type[Exception], ...],
    *,
    deadline: float,
    first_s: float = 0.05,
    max_s: float = 2.0,
) -> T:
    """Repeat a call until it succeeds, raises another error, or the time is over.

    Args:
        call: The call, which must be safe to repeat after these errors.
        errors: The errors after which it is repeated; the last one is raised when the time is over.
        deadline: No repetition begins after this time (`time.monotonic`).
        first_s: Pause before the first repetition, with full jitter; the pauses double.
        max_s: Longest pause.
    """
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(errors),
        wait=tenacity.wait_random_exponential(multiplier=first_s, max=max_s),
        stop=lambda _: time.monotonic() >= deadline,
        reraise=True,
    )
    return retrying(call)
