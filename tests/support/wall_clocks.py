"""Clocks for parts of an agent that a test makes itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tidelock.csnlog.core.log_time import ClockReading
from tidelock.replication.clocks import Clocks, uptime_s

#: The clock of a home in a machine's test, where time does not matter.
NO_CLOCK: Final = ClockReading(0)


def own_clock(wall: Callable[[], float] = time.time) -> Clocks:
    """Return the clocks of an agent that has not heard of any other one yet."""
    return Clocks(wall=wall, uptime=uptime_s, offset_max_s=5.0, kept_s=15.0, server_kept_s=180.0)
