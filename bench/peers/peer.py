"""The interface that a measured peer implements, and the retries that its users must write."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from bench.tools.workload import GAVE_UP, Commit

#: A commit that has not succeeded for so long is given up, so that a run ends.
PATIENCE_S: Final = 15.0


class OtherFormat(Protocol):
    """A table format. Every method gets the folder that it keeps everything in."""

    name: str
    #: Tables of one commit.
    tables: int
    #: A note for readers of the figures.
    note: str

    def prepare(self, folder: Path) -> None:
        """Create the tables."""

    def open(self, number: int, folder: Path) -> Commit:
        """Return the commits of a client; called in the client's process."""

    def rows(self, folder: Path) -> int:
        """Return how many rows there are in all tables."""


def retrying(attempt: Callable[[int], None], errors: tuple[type[Exception], ...]) -> Commit:
    """Repeat an attempt until it ends without one of these errors, and count how often it did not."""

    def commit(count: int) -> tuple[int, int]:
        failed = 0
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            try:
                attempt(count)
            except errors:
                failed += 1
            else:
                return 0, failed
        return GAVE_UP, failed

    return commit
