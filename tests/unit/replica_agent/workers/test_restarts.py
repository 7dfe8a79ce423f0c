"""Workers that end are started again, and the pauses between the starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from tidelock.replica_agent.workers import restarts
from tidelock.replica_agent.workers.restarts import keep_running


class _Clock:
    """Replaces `time` and `asyncio.sleep` in the module: time passes only where a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """Replace the clock of the module."""
    made = _Clock()
    monkeypatch.setattr(restarts, "time", made)
    monkeypatch.setattr(asyncio, "sleep", made.sleep)
    return made


async def _keep(lives: Sequence[Callable[[], int]], pause_max_s: float = 1.0) -> list[Any]:
    """Run one worker lifetime after the other; returns the logged events."""
    left = list(lives)

    async def run() -> int:
        if not left:
            raise asyncio.CancelledError
        return left.pop(0)()

    with capture_logs() as logged, pytest.raises(asyncio.CancelledError):
        await keep_running(
            run, pause_max_s=pause_max_s, what="reader", log=structlog.get_logger().bind(slot=3)
        )
    return logged


async def test_pauses_grow_up_to_their_bound(clock: _Clock) -> None:
    """A worker that keeps dying at its start is started less and less often."""
    await _keep([lambda: -9] * 6)
    assert clock.pauses == [0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


async def test_a_worker_that_has_lived_is_started_again_at_once(clock: _Clock) -> None:
    """The pause is short again after a lifetime that was long enough."""

    def live() -> int:
        clock.now_s += restarts.HEALTHY_S + 1
        return -9

    await _keep([lambda: -9, lambda: -9, live, lambda: -9])
    assert clock.pauses == [0.2, 0.4, restarts.RESTART_PAUSE_S, 0.2]


@pytest.mark.usefixtures("clock")
async def test_each_end_is_logged_with_its_reason() -> None:
    """The log distinguishes a worker that died from one that could not be started."""

    def fail() -> int:
        raise OSError("no process")

    died, failed = await _keep([lambda: 1, fail])
    assert died == {"event": "reader.died", "exit_code": 1, "slot": 3, "log_level": "error"}
    assert (failed["event"], failed["slot"], failed["exc_info"]) == ("reader.failed", 3, True)
