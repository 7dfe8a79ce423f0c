"""What is freed goes back to the system, in a process of its own each."""

from __future__ import annotations

import platform
import subprocess
import sys
from typing import Final

import pytest

#: Blocks between small ones that live on; the first teaches glibc to take the others from its heap.
LIFE: Final = """
import sys
from tidelock.replica_agent import allocator

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

if sys.argv[1] == "mapped":
    allocator.map_large_blocks()
before = resident_mb()
teacher = b"x" * (8 << 20)
del teacher
large, small = [], []
for _ in range(100):
    large.append(b"x" * (2 << 20))
    small.append(b"x" * 100_000)
large.clear()
print(resident_mb() - before)
"""


def kept_mb(way: str) -> float:
    """Return what a process keeps of 200 MB that it has freed."""
    run = subprocess.run([sys.executable, "-c", LIFE, way], check=True, capture_output=True, text=True)
    return float(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the threshold is glibc's")
def test_freed_blocks_go_back() -> None:
    """As they are, they stay: what is set makes the difference."""
    assert kept_mb("as it is") > 150
    assert kept_mb("mapped") < 30
