"""Repetition of a call that fails for a while."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

import tenacity

from tidelock.client.agents.waits import Waits

T = TypeVar("T")


def repeat(
    call: Callable[[], T],
    errors: type[Exception] | tuple[type[Exception], ...],
    *,
    deadline: float,
    waits: Waits,
    what: str,
    first_s: float = 0.05,
    max_s: float = 2.0,
) -> T:
    """Repeat a call until it succeeds, raises another error, or the time is over.

    Args:
        call: The call, which must be safe to repeat after these errors.
        errors: The errors after which it is repeated; the last one is raised when the time is over.
        deadline: No repetition begins after this time (`time.monotonic`).
        waits: The log of the client's waits. The first failure begins one.
        what: What is waited for, for that log.
        first_s: Pause before the first repetition, with full jitter; the pauses double.
        max_s: Longest pause.
    """
    try:
        return call()  # nearly always; what follows costs more than to encode the rows of a small commit
    except errors as error:
        first: Exception | None = error
    failed: list[BaseException | None] = []

    def again() -> T:
        nonlocal first
        if first is not None:
            error, first = first, None
            raise error
        return call()

    def text() -> str:
        left_s = max(0.0, deadline - time.monotonic())
        return f"{what}, repeated for {left_s:.0f} s more ({_reason(failed[-1])})"

    with contextlib.ExitStack() as waiting:

        def note(state: tenacity.RetryCallState) -> None:
            if not failed:
                waiting.enter_context(waits.during(text))
            failed.append(None if state.outcome is None else state.outcome.exception())
            del failed[:-1]

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(errors),
            wait=tenacity.wait_random_exponential(multiplier=first_s, max=max_s),
            stop=lambda _: time.monotonic() >= deadline,
            before_sleep=note,
            reraise=True,
        )
        return retrying(again)


def _reason(error: BaseException | None) -> str:
    """Return why an attempt has failed; an error without a text of its own has it in its cause."""
    return str(error) or str(error and error.__cause__)
