"""The lines of the logs of nodes that tell of transactions."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

#: Lines about one transaction out of one log, and characters of a line, at most.
_LINES_MAX: Final = 12
_WIDTH_MAX: Final = 600


def lines_about(folder: Path, tids: Collection[str]) -> dict[str, list[str]]:
    """Return for each tid the first lines of each log that name it, with the name of the node before them.

    Args:
        folder: The folder with a log for each node; it need not exist.
        tids: The transactions.
    """
    found: dict[str, list[str]] = {tid: [] for tid in tids}
    if not found:
        return found
    named = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, found))})(?![\w-])")
    for path in sorted(folder.glob("*.log")):
        left = dict.fromkeys(found, _LINES_MAX)
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                for tid in set(named.findall(line)):
                    if left[tid]:
                        left[tid] -= 1
                        found[tid].append(f"{path.stem}: {line.rstrip()[:_WIDTH_MAX]}")
    return found
