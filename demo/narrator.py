"""The output of the demo while it runs: a line for each step, and on a terminal the current activity."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

#: How often the line about the current activity is drawn, per second.
_DRAWN_PER_S = 4


class Narrator:
    """The output on a console, each line with the seconds since the beginning.

    Args:
        console: The console.
        elapsed_s: How long ago the demo has begun, in another process.
    """

    def __init__(self, console: Console, *, elapsed_s: float = 0.0) -> None:
        self.console = console
        self._begin = time.monotonic() - elapsed_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begin

    def say(self, text: str, *, style: str | None = None) -> None:
        """Print a line."""
        line = Text(f"{self.elapsed_s:6.1f} s  ", style="dim").append(text, style=style or "not dim")
        self.console.print(line, soft_wrap=True)

    @contextmanager
    def busy(self, now: Callable[[], str]) -> Iterator[None]:
        """Show the current activity, redrawn several times a second; nothing is shown without a terminal."""
        if not self.console.is_terminal:
            yield
            return
        with self.console.status(_Now(now), refresh_per_second=_DRAWN_PER_S):
            yield


class _Now:
    """A text that is made when it is drawn."""

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make

    def __rich__(self) -> Text:
        return Text(self._make())
