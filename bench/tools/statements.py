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


@dataclass(frozen=True, slots=True)
class BenchMerge:
    """A merge of a share of lineitem, of which one row in ten is new.

    Attributes:
        percent: The share of the table's rows, in percent.
        on: The columns of the key.
        update: The columns that rows with a known key get from the merged rows.
    """

    percent: int
    on: tuple[str, ...] = ("l_orderkey", "l_linenumber")
    update: tuple[str, ...] = ("l_extendedprice", "l_comment")

    def rows(self, largest: int) -> dict[str, str]:
        """Return the merged rows as expressions over lineitem, and under "where" which of its rows they are.

        Args:
            largest: The largest order key of the table.
        """
        chosen = f"l_orderkey % 100 < {self.percent}"
        new = f"l_orderkey % 1000 < {self.percent}"
        return {
            "where": chosen,
            "l_orderkey": f"if({new}, l_orderkey + {largest}, l_orderkey)",
            "l_extendedprice": "cast(l_extendedprice * 1.01 as decimal(15, 2))",
            "l_comment": "concat('merged ', l_comment)",
        }


#: The merges that all formats do.
MERGES: Final = (BenchMerge(1), BenchMerge(10))


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
