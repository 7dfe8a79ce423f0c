"""An agent's wall clock is as far off as its file says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tidelock.testing.clock import VARIABLE, Clock

PROGRAM = """
import time
true_ns, monotonic = time.time_ns, time.monotonic()
from tidelock.testing.clock import replace_clock
replace_clock()
print(time.time_ns() - true_ns(), time.time() - true_ns() / 1e9)
"""


def offsets_s(environ: dict[str, str]) -> list[float]:
    """How far a process with this environment finds its two wall clocks off, in seconds."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, check=True)
    nanoseconds, seconds = done.stdout.split()
    return [round(int(nanoseconds) / 1e9), round(float(seconds))]


def test_a_clock_jumps_to_where_it_is_set(tmp_path: Path) -> None:
    """It is right at first, and afterwards as far ahead or behind as the last call said."""
    clock = Clock(tmp_path / "clock")
    environ = {VARIABLE: str(clock.file)}
    assert offsets_s(environ) == [0, 0]
    for offset_s in (86_400.0, -3_600.0, 0.0):
        clock.set(offset_s)
        assert offsets_s(environ) == [offset_s, offset_s]


def test_a_process_without_a_file_has_the_true_clock() -> None:
    """Nothing is replaced where no file is named."""
    assert offsets_s({}) == [0, 0]
