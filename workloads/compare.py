"""Comparison of the rows of two engines. Pure.

Whole numbers, texts, dates and decimals must be equal. Floating point may differ in the last digits,
because the two engines add in another order, and an average of decimals is a double in DuckDB and a decimal
with four more digits than its argument in Spark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from itertools import zip_longest
from typing import Any, Final

#: Largest difference of two equal doubles, relative to the larger one.
TOLERANCE_RELATIVE: Final = 1e-9
#: Largest difference of a decimal with six digits after the point and the double that it rounds.
TOLERANCE_ROUNDED: Final = 1e-6

Row = tuple[Any, ...]


def first_difference(left: Sequence[Row], right: Sequence[Row]) -> str | None:
    """Describe the first difference of two lists of rows; None if they are equal."""
    for number, (one, other) in enumerate(zip_longest(left, right), start=1):
        if one is None or other is None or not _same_row(one, other):
            sizes = f" ({len(left)} and {len(right)} rows)" if len(left) != len(right) else ""
            return f"row {number}{sizes}: {_shown(one)} is not {_shown(other)}"
    return None


def _same_row(one: Row, other: Row) -> bool:
    return len(one) == len(other) and all(map(same_value, one, other))


def same_value(one: object, other: object) -> bool:
    """Return whether values of two engines mean the same."""
    if isinstance(one, float) or isinstance(other, float):
        if not isinstance(one, int | float | Decimal) or not isinstance(other, int | float | Decimal):
            return False
        rounded = isinstance(one, Decimal) or isinstance(other, Decimal)
        return math.isclose(
            one, other, rel_tol=TOLERANCE_RELATIVE, abs_tol=TOLERANCE_ROUNDED if rounded else 0.0
        )
    return one == other


def _shown(row: Row | None) -> str:
    return "no row" if row is None else f"({', '.join(map(str, row))})"
