"""What an agent has said last, for an error message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

#: So much of the end of a log is looked at.
TAIL_BYTES: Final = 64 * 1024
_ERRORS: Final = frozenset({"error", "critical"})
_FIELDS: Final = ("reason", "error", "exception")


def last_error(log: Path, begin: int = 0) -> str | None:
    """Return the last error in a log, or its last line if it holds none; None for nothing.

    Args:
        log: JSON lines, or text.
        begin: Only what was written behind this position.
    """
    lines = _tail(log, begin)
    for line in reversed(lines):
        if said := _of_json(line):
            return said
    return lines[-1] if lines else None


def _tail(log: Path, begin: int) -> list[str]:
    try:
        with log.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(begin, end - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


def _of_json(line: str) -> str | None:
    """The message of an error event; None for anything else."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or event.get("level") not in _ERRORS:
        return None
    # Of a traceback, only the last line says what happened.
    details = [str(event[name]).strip().splitlines()[-1] for name in _FIELDS if event.get(name)]
    return ": ".join([str(event.get("event", "error")), *details[:1]])
