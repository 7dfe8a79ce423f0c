"""The timeline of a run as a picture of its own, for documents. Pure."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Final

from chaos.report.elements import Child, element
from chaos.report.model import Run
from chaos.report.timeline import WIDTH, legend, rows, sample

_TITLE_HEIGHT: Final = 24
_KEYS_IN_LINE: Final = 6
_KEY_WIDTH: Final = 196
_KEY_HEIGHT: Final = 18


def picture_of(run: Run, *, styles: str) -> ET.Element:
    """Return the timeline with its legend; `styles` is the CSS of pictures."""
    y = 6.0
    parts: list[Child] = []
    pictures = rows(run, linked=False)
    for one in pictures:
        if len(pictures) > 1:
            parts.append(element("text", one.title, class_="title", x=8, y=y + 14))
            y += _TITLE_HEIGHT
        parts.append(element("g", one.group, transform=f"translate(0 {y:.0f})"))
        y += one.height + 8
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
