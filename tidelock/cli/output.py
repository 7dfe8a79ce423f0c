"""Output of commands: tables for people, JSON for programs, and never both on one stream.

Results go to standard output. Progress, hints and errors go to standard error, so a result can be piped.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidelock.wire.rows import Row

#: Width of tables that no terminal shows: no cell is cut off for lack of room.
_WIDTH_PIPED: Final = 200


def out() -> Console:
    """Return the console for results."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH_PIPED)


def err() -> Console:
    """Return the console for everything else."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a result for programs.

    Of the values that JSON cannot express, times and dates are ISO 8601, bytes base64, and others text.
    """
    out().print(json.dumps(value, indent=2, default=_plain), markup=False, soft_wrap=True)


def _plain(value: object) -> object:
    match value:
        case dt.date() | dt.time():  # a datetime is a date
            return value.isoformat()
        case Row():
            return dict(value)
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return str(value)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    """Print a table for people; numbers to the right, None as a dash."""
    rows = [list(row) for row in rows]
    grid = Table(title=title, title_justify="left", header_style="bold")
    for index, name in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float | None) for row in rows)
        grid.add_column(escape(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*("-" if cell is None else escape(str(cell)) for cell in row))
    out().print(grid)


def say(text: str) -> None:
    """Print a line of a result for people."""
    out().print(text, markup=False, soft_wrap=True)


def hint(text: str) -> None:
    """Print a hint beside the result."""
    err().print(text, style="dim", markup=False)


def complain(text: str) -> None:
    """Print an error as one line."""
    err().print(f"tidelock: {' '.join(text.split())}", style="red", markup=False)


def size(count: int) -> str:
    """Return a number of bytes as text for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":  # noqa: PLR2004 - what the units mean
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError
