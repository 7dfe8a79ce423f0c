"""Elements of HTML and SVG: built as a tree, so that no text can become markup. Pure."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from typing import Final, TypeAlias

#: A child of an element; None is left out.
Child: TypeAlias = "ET.Element | str | int | None"

#: Characters that neither XML nor UTF-8 can carry.
_FORBIDDEN: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def element(tag: str, *children: Child | Iterable[Child], **attributes: str | float | None) -> ET.Element:
    """Return an element.

    Args:
        tag: Its name.
        children: Elements and texts, in their order.
        attributes: Their values; ``class_`` stands for ``class``, any other ``_`` for ``-``, and one that is
            None is left out.
    """
    made = ET.Element(
        tag, {_name(name): text(value) for name, value in attributes.items() if value is not None}
    )
    for child in children:
        if child is None or isinstance(child, str | int | ET.Element):
            _append(made, child)
        else:
            for each in child:
                _append(made, each)
    return made


def text(value: str | float) -> str:
    """Return a value as text: a number with at most two decimals, forbidden characters as U+FFFD."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))
    return _FORBIDDEN.sub("\ufffd", str(value))


def html(page: ET.Element) -> str:
    """Return a page as the text of an HTML file."""
    return "<!DOCTYPE html>\n" + ET.tostring(page, encoding="unicode", method="html") + "\n"


def svg(picture: ET.Element) -> str:
    """Return a picture as the text of an SVG file."""
    return ET.tostring(picture, encoding="unicode", method="xml") + "\n"


def _name(attribute: str) -> str:
    return attribute.rstrip("_").replace("_", "-")


def _append(parent: ET.Element, child: Child) -> None:
    if child is None:
        return
    if isinstance(child, ET.Element):
        parent.append(child)
    elif len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text(child)
    else:
        parent.text = (parent.text or "") + text(child)
