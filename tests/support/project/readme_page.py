"""The commands of README.md's consoles, and the output that the page shows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.support.project import pages


@dataclass(frozen=True, slots=True)
class Typed:
    """A command, and the lines of its output that the page shows."""

    command: str
    shown: str


def commands() -> list[Typed]:
    """Return all commands of the page's consoles, in their order, without their comments."""
    found = []
    for console in pages.blocks("README.md", "console"):
        for text in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
            command, _, shown = text.partition("\n")
            found.append(Typed(command.partition("  #")[0].strip(), shown))
    return found


def tidelock_commands() -> list[Typed]:
    """Return the commands of the program `tidelock`."""
    return [one for one in commands() if one.command.startswith("tidelock ")]
