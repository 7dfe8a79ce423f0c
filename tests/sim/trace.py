"""The events of a run, in order, with virtual times: the same seed has to give the same trace."""

from __future__ import annotations

import hashlib
from collections.abc import Callable


class Trace:
    """Lines of a run, and their digest.

    Args:
        now: Virtual seconds.
        keep: Keep the lines, for people.
    """

    def __init__(self, now: Callable[[], float], *, keep: bool = False) -> None:
        self._now = now
        self._digest = hashlib.sha256()
        self._keep = keep
        self.lines: list[str] = []
        self.count = 0

    def note(self, what: str, *facts: object) -> None:
        """Write a line; facts must not depend on the machine."""
        line = f"{self._now():.6f} {what} {' '.join(map(str, facts))}"
        self._digest.update(line.encode())
        self.count += 1
        if self._keep:
            self.lines.append(line)

    def comment(self, line: str) -> None:
        """Write a line for people, which does not count."""
        if self._keep:
            self.lines.append(f"{self._now():.6f}     {line}")

    @property
    def digest(self) -> str:
        """Digest of all lines so far."""
        return self._digest.hexdigest()
