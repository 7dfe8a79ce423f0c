"""Seeds that found something, as command lines of the runner; the slow tests run them again."""

from __future__ import annotations

from typing import Final

#: Each with the fault that it found, here or in a judge.
KEPT: Final[tuple[tuple[str, ...], ...]] = (
    # Members, disks and the majority of ZooKeeper in two minutes: the first run of all kinds.
    ("--seed", "2", "--minutes", "2", "--sessions", "0"),
)
