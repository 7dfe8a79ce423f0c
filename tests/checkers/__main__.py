"""``python -m tests.checkers HISTORY``: judge a history by both checkers; 1 if it breaks its level."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.checkers import black_box, by_timestamps
from tests.checkers.conflicts import ADDED_ROWS, ALL_CHANGES
from tests.checkers.levels import Level, Order
from tests.checkers.operations import History, load
from tests.checkers.violations import Violation

#: The level and the order that a store of each kind keeps.
LEVELS: Final = {
    "snapshot": (Level.SNAPSHOT, Order.PROCESS),
    "serializable": (Level.SERIALIZABLE, Order.PROCESS),
    "strict": (Level.SERIALIZABLE, Order.REALTIME),
}


def judge(history: History, level: str, *, appends_conflict: bool = False) -> dict[str, list[Violation]]:
    """Return the violations of a history by the name of the checker.

    Args:
        history: The history; without timestamps only one checker judges it.
        level: A key of `LEVELS`.
        appends_conflict: Whether two concurrent appends to a key exclude each other.
    """
    conflicting = ALL_CHANGES if appends_conflict else ADDED_ROWS
    found = {"black box": black_box.check(history, *LEVELS[level], conflicting=conflicting)}
    if by_timestamps.has_timestamps(history):
        found["timestamps"] = by_timestamps.check(history, conflicting=conflicting, strict=level == "strict")
    return found


def main(arguments: Sequence[str]) -> int:
    """Judge the history that the arguments name, and print the violations."""
    parser = argparse.ArgumentParser(prog="python -m tests.checkers", description=__doc__)
    parser.add_argument("history", type=Path)
    parser.add_argument("--level", choices=LEVELS, default="snapshot")
    parser.add_argument(
        "--appends-conflict", action="store_true", help="concurrent appends exclude each other"
    )
    parser.add_argument("--json", action="store_true", help="print one object with the violations")
    given = parser.parse_args(arguments)
    history = load(given.history)
    found = judge(history, given.level, appends_conflict=given.appends_conflict)
    if given.json:
        report = {name: [dataclasses.asdict(one) for one in of_one] for name, of_one in found.items()}
        lines = [json.dumps(report)]
    else:
        lines = [f"{len(history.transactions)} transactions, judged by {' and '.join(found)}"]
        lines += [f"{name}: {one}" for name, of_one in found.items() for one in of_one]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
