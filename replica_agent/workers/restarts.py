"""Restarts of a worker whenever it ends, with longer pauses while it keeps failing at its start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from structlog.typing import FilteringBoundLogger

#: Pause before a dead worker is started again, in seconds; doubled while it keeps dying.
RESTART_PAUSE_S: Final = 0.1
#: A worker that ran at least this long has not failed at its start, in seconds.
HEALTHY_S: Final = 30.0


async def keep_running(
    run: Callable[[], Awaitable[int]], *, pause_max_s: float, what: str, log: FilteringBoundLogger
) -> NoReturn:
    """Run a worker until this task is cancelled.

    Args:
        run: Starts the worker, and returns its exit status when it has ended.
        pause_max_s: Longest pause between its end and its next start.
        what: Its name in the events "<name>.died" and "<name>.failed" (it could not be started).
        log: Where these go.
    """
    pause_s = RESTART_PAUSE_S
    while True:
        begun = time.monotonic()
        try:
            log.error(f"{what}.died", exit_code=await run())
        except Exception:
            log.exception(f"{what}.failed")
        lived_s = time.monotonic() - begun
        pause_s = min(RESTART_PAUSE_S if lived_s > HEALTHY_S else 2 * pause_s, pause_max_s)
        await asyncio.sleep(pause_s)
