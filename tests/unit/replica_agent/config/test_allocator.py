"""Freed memory goes back to the system; each case runs in a separate process."""

from __future__ import annotations

import platform
import subprocess
import sys
from typing import Final

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heaps are glibc's")

#: 200 MB of blocks between small ones that live on, 10 MB; the first block teaches glibc to take the others
#: from its heap.
LIFE: Final = """
import sys
from tidelock.replica_agent.config import allocator

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

block, done = int(sys.argv[1]), sys.argv[2:]
if "map" in done:
    allocator.map_large_blocks()
before = resident_mb()
teacher = b"x" * (8 << 20)
del teacher
freed, kept = [], []
count = 200_000_000 // block
for _ in range(count):
    freed.append(b"x" * block)
    kept.append(b"x" * (10_000_000 // count))
freed.clear()
if "give back" in done:
    allocator.give_back()
print(resident_mb() - before)
"""
LARGE, SMALLER = 2 << 20, 512 << 10


def kept_mb(block: int, *done: str) -> float:
    """Return what a process keeps of 200 MB in blocks that it has freed, and of 10 MB that it has not."""
    words = [sys.executable, "-c", LIFE, str(block), *done]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def test_large_blocks_go_back_when_they_are_freed() -> None:
    """As they are, they stay: what is set makes the difference."""
    assert kept_mb(LARGE) > 150
    assert kept_mb(LARGE, "map") < 30


def test_smaller_blocks_go_back_when_it_is_asked_for() -> None:
    """They come from the heap, and stay there until then."""
    assert kept_mb(SMALLER, "map") > 150
    assert kept_mb(SMALLER, "map", "give back") < 30
