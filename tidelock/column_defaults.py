"""Defaults of columns: the value of a row whose insert leaves the column out. Pure.

A definition has a default as text that Arrow casts to the type of the column; that of bytes are hexadecimal
digits.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

import pyarrow as pa

from tidelock.column_types import to_arrow

#: A time of day: with seconds or without, to microseconds.
_TIME: Final = re.compile(r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?")


def scalar_of(kind: str, text: str | None) -> pa.Scalar:
    """Return the value of a default of a definition."""
    if text is None:
        return pa.scalar(None, to_arrow(kind))
    if kind == "binary":
        return pa.scalar(bytes.fromhex(text), pa.binary())
    if kind == "time":  # Arrow does not cast text to it
        return pa.scalar(time_of(text), pa.time64("us"))
    return pa.scalar(text, pa.string()).cast(to_arrow(kind))


def time_of(text: str) -> dt.time:
    """Return the time of day of a text such as `12:30` or `23:59:59.999999`; ValueError for others."""
    if not _TIME.fullmatch(text):
        raise ValueError(f"expected a time of day such as 12:30:00.5, found {text!r}")
    head, point, digits = text.partition(".")
    return dt.time.fromisoformat(f"{head}.{digits:0<6}" if point else head)
