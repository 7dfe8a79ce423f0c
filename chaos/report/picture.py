"""The timeline of a run as a picture of its own, for documents. Pure."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Final

from chaos.report.elements import Child, element
from chaos.report.model import Run
from chaos.report.timeline import WIDTH, legend, row, sample

_KEYS_IN_LINE: Final = 6
_KEY_WIDTH: Final = 196
_KEY_HEIGHT: Final = 18


def picture_of(run: Run, *, minutes: tuple[float, float] | None, styles: str) -> ET.Element:
    """Return the timeline in one row, with its legend.

    Args:
        run: The run.
        minutes: Only this part of it, in minutes since its begin; None = the whole.
        styles: CSS of pictures.
    """
    begin_ns, end_ns = run.begin_ns, run.end_ns
    if minutes is not None:
        begin_ns, end_ns = (min(run.begin_ns + int(minute * 60e9), run.end_ns) for minute in minutes)
    drawn = row(run, begin_ns, end_ns, None, linked=False)
    parts: list[Child] = [drawn.group]
    y = drawn.height + 10
    for number, (class_, text) in enumerate(legend()):
        x = 10 + number % _KEYS_IN_LINE * _KEY_WIDTH
        line = y + number // _KEYS_IN_LINE * _KEY_HEIGHT
        parts.append(element("g", sample(class_), class_="row", transform=f"translate({x} {line:.0f})"))
        parts.append(element("text", text, class_="key", x=x + 26, y=line + 10))
    y += -(-len(legend()) // _KEYS_IN_LINE) * _KEY_HEIGHT + 6
    return element(
        "svg",
        element("title", f"Timeline of a chaos run, seed {run.about.get('seed', 'not recorded')}"),
        element("style", styles),
        element("rect", class_="back", width=WIDTH, height=y),
        parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {y:.0f}",
    )
