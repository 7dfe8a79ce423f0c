"""Wall clocks of agents that a test sets: each agent reads how far its clock is off from a file.

The agents are forked (`forked.py`), so the template replaces the clock before an agent begins. The monotonic
clock, and the clock of ZooKeeper, stay as they are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "TIDELOCK_TESTS_CLOCK"
DAY_S: Final = 86_400.0
#: Settings of agents that look at the clocks, and forget, very often.
ATTENTIVE: Final = {
    "clean_interval_s": 0.2,
    "horizon_interval_s": 0.2,
    "clock_check_interval_s": 0.3,
    "tick_interval_s": 1,
}
#: In this time they have forgotten what they would forget by a wrong clock.
FORGETTING_S: Final = 15 * ATTENTIVE["clean_interval_s"]


def set_clock(path: Path, offset_s: float) -> None:
    """Let the clock that is read through a file jump: it is so many seconds ahead of the true time."""
    fresh = path.with_suffix(".new")
    fresh.write_text(str(offset_s))
    fresh.replace(path)


class Clocks:
    """The wall clocks of some agents.

    Args:
        folder: The files are made here.
        replicas: The agents.
    """

    def __init__(self, folder: Path, replicas: Iterable[str]) -> None:
        self._files = {replica: folder / f"{replica}.clock" for replica in replicas}
        for replica in self._files:
            self.set(replica, 0.0)

    @property
    def environments(self) -> Mapping[str, Mapping[str, str]]:
        """The environment of each agent."""
        return {replica: {VARIABLE: str(path)} for replica, path in self._files.items()}

    def set(self, replica: str, offset_s: float) -> None:
        """Let a clock jump: from now on it is so many seconds ahead of the true time."""
        set_clock(self._files[replica], offset_s)


def replace_clock() -> None:
    """Let this process read its wall clock through the file that its environment names, if it names one."""
    if (name := os.environ.get(VARIABLE)) is None:
        return
    path, true_ns = Path(name), time.time_ns

    def time_ns() -> int:
        return true_ns() + int(float(path.read_text()) * 1e9)

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
