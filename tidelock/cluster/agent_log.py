"""The last error of an agent's log, for an error message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

#: Bytes at the end of a log that are searched.
TAIL_BYTES: Final = 64 * 1024
_ERRORS: Final = frozenset({"error", "critical"})
_FIELDS: Final = ("reason", "error", "exception")


def last_error(log: Path, begin: int = 0) -> str | None:
    """Return the last error in a log, or its last line if it has no error; None if the log is empty.

    Args:
        log: The file: JSON lines, or text.
        begin: Position in the file from which lines are read.
    """
    lines = _tail(log, begin)
    for line in reversed(lines):
        if error := _of_json(line):
            return error
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
    """Return the message of an error event; None for anything else."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or event.get("level") not in _ERRORS:
        return None
    # Only the last line of a traceback names the error.
    details = [str(event[name]).strip().splitlines()[-1] for name in _FIELDS if event.get(name)]
    return ": ".join([str(event.get("event", "error")), *details[:1]])
