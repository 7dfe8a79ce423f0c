"""The one loop that retries a commit: how often, after which errors, and what it raises in the end."""

from __future__ import annotations

import pytest

from tidelock.errors import BadRequestError, CommitUnknownError, TidelockError
from tidelock.replica_agent.transactions.ending.settlement import retried


class Attempts:
    """Ends in one error after the other, then in a result."""

    def __init__(self, *errors: TidelockError) -> None:
        self.errors = list(errors)
        self.made = 0

    async def __call__(self) -> str:
        """Make the next one."""
        self.made += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def unknown() -> CommitUnknownError:
    """An answer that was lost."""
    return CommitUnknownError("lost", tid="r1-1-1")


async def test_an_attempt_is_repeated_until_it_ends_otherwise() -> None:
    """Two lost answers cost two more attempts, and the third is the answer."""
    attempts = Attempts(unknown(), unknown())
    assert await retried(attempts, after=(CommitUnknownError,), may_retry=lambda: True) == "done"
    assert attempts.made == 3


async def test_the_bound_ends_the_attempts_with_their_last_error() -> None:
    """One attempt is made in any case; the bound is asked after it."""
    last = unknown()
    attempts = Attempts(unknown(), last)
    left = [True, False]
    with pytest.raises(CommitUnknownError) as raised:
        await retried(attempts, after=(CommitUnknownError,), may_retry=lambda: left.pop(0))
    assert raised.value is last
    assert attempts.made == 2


async def test_any_other_error_ends_the_attempts_at_once() -> None:
    """An error that certainly excludes a commit is raised without another attempt."""
    attempts = Attempts(BadRequestError("no"))
    with pytest.raises(BadRequestError):
        await retried(attempts, after=(CommitUnknownError,), may_retry=lambda: True)
    assert attempts.made == 1
