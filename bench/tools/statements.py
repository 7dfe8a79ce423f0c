"""Deletes and updates of one row in a hundred of lineitem, in SQL that all measured systems read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_SHARE: Final = 100


@dataclass(frozen=True, slots=True)
class BenchStatement:
    """A statement that all measured systems run.

    Attributes:
        name: For the report.
        where: Condition in SQL that all of them understand.
        update: New values, or None for a delete.
    """

    name: str
    where: str
    update: Mapping[str, str] | None


def statements(largest: int) -> list[BenchStatement]:
    """Return the statements: over rows that are spread, and over rows that are next to each other.

    `largest` is the largest order key of the table.
    """
    reprice = {"l_extendedprice": "l_extendedprice * 1.01"}
    step = largest // _SHARE
    ranges = [f"l_orderkey >= {step * number} and l_orderkey < {step * (number + 1)}" for number in (20, 60)]
    return [
        BenchStatement("delete, spread", f"l_orderkey % {_SHARE} = 7", None),
        BenchStatement("update, spread", f"l_orderkey % {_SHARE} = 8", reprice),
        BenchStatement("delete, range", ranges[0], None),
        BenchStatement("update, range", ranges[1], reprice),
    ]
