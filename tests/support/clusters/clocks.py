"""Wall clocks of agents that a test sets (`tidelock.testing.clock`).

The agents are forked (`forked.py`), so the template replaces the clock before an agent begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tidelock.testing.clock import VARIABLE, Clock

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


class Clocks:
    """The wall clocks of some agents.

    Args:
        folder: The files are made here.
        replicas: The agents.
    """

    def __init__(self, folder: Path, replicas: Iterable[str]) -> None:
        self._clocks = {replica: Clock(folder / f"{replica}.clock") for replica in replicas}

    @property
    def environments(self) -> Mapping[str, Mapping[str, str]]:
        """The environment of each agent."""
        return {replica: {VARIABLE: str(clock.file)} for replica, clock in self._clocks.items()}

    def set(self, replica: str, offset_s: float) -> None:
        """Let a clock jump: from now on it is so many seconds ahead of the true time."""
        self._clocks[replica].set(offset_s)
