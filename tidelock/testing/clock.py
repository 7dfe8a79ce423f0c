"""Wall clocks of agents that a test sets: each agent reads how far its clock is off from a file.

The monotonic clock of an agent, the clocks of its readers and SQL processes, and that of ZooKeeper stay as
they are.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Final

#: The variable that names the file of an agent's clock.
VARIABLE: Final = "TIDELOCK_TESTING_CLOCK"
#: The program of an agent that reads the file.
PROGRAM: Final = "tidelock.testing.agent"
#: Nanoseconds. A reader gets the old number or the new one, never a part: eight bytes are copied at once.
_OFFSET: Final = struct.Struct("=q")


class Clock:
    """The wall clock of an agent; it is right at first.

    Args:
        file: What the agent reads; made in a folder that exists.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.set(0.0)

    def set(self, offset_s: float) -> None:
        """Let the clock jump: from now on it is so many seconds ahead of the true time; < 0: behind it."""
        descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(descriptor, _OFFSET.pack(round(offset_s * 1e9)), 0)
        finally:
            os.close(descriptor)


def replace_clock() -> None:
    """Let this process read its wall clock through the file that its environment names, if it names one."""
    if (name := os.environ.get(VARIABLE)) is None:
        return
    path, true_ns = Path(name), time.time_ns

    def time_ns() -> int:
        (offset_ns,) = _OFFSET.unpack(path.read_bytes())
        return true_ns() + int(offset_ns)

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
