"""Defaults of columns: the value of a row whose insert leaves the column out. Pure.

A definition has a default as text that Arrow casts to the type of the column; that of bytes are hexadecimal
digits.
"""

from __future__ import annotations

import pyarrow as pa

from tidelock.column_types import to_arrow


def scalar_of(kind: str, text: str | None) -> pa.Scalar:
    """Return the value of a default of a definition."""
    if text is None:
        return pa.scalar(None, to_arrow(kind))
    if kind == "binary":
        return pa.scalar(bytes.fromhex(text), pa.binary())
    return pa.scalar(text, pa.string()).cast(to_arrow(kind))
