"""Tables of the report and their cells. Pure."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chaos.report.elements import element
from chaos.report.model import Run


@dataclass(frozen=True, slots=True)
class Figure:
    """A number in a cell, set to the right; `bad`: it should not be so."""

    text: str
    bad: bool = False


Cell: TypeAlias = "ET.Element | Figure | str"


def number(value: int, *, bad: bool = False) -> Figure:
    """Return a count as a cell."""
    return Figure(f"{value:,}", bad)


def seconds(value: float | None) -> Figure:
    """Return a length of time in seconds as a cell; None as "never"."""
    return Figure("never", bad=True) if value is None else Figure(f"{value:.2f}")


def moment(run: Run, ns: int | None) -> Figure:
    """Return a moment since the begin of the run as a cell; None as "end"."""
    return Figure("end" if ns is None else run.clock(ns))


def table(titles: Sequence[str], rows: Iterable[Sequence[Cell]]) -> ET.Element:
    """Return a table that is as wide as it needs; columns of figures are set to the right."""
    rows = list(rows)
    figures = [bool(rows) and isinstance(cell, Figure) for cell in (rows[0] if rows else titles)]
    heads = [
        element("th", title, class_="n" if right else None)
        for title, right in zip(titles, figures, strict=True)
    ]
    return element(
        "div",
        element(
            "table",
            element("thead", element("tr", heads)),
            element("tbody", [element("tr", [_cell(cell) for cell in row]) for row in rows]),
        ),
        class_="wide",
    )


#: Above so many letters a text may be broken anywhere.
_LONG = 30


def _cell(cell: Cell) -> ET.Element:
    if isinstance(cell, Figure):
        return element("td", cell.text, class_="n bad" if cell.bad else "n")
    long = isinstance(cell, str) and len(cell) > _LONG
    return element("td", cell, class_="long" if long else None)
