"""Types that a column can be widened to, without a value that changes. Pure.

Parquet has one physical type for the integers of up to 32 bits, so files of before show such a column in
its wider type by their footer alone (:mod:`tidelock.replica_agent.footers.evolving`). Every other wider type
needs other pages: the rows are written again.
"""

from __future__ import annotations

import re
import struct
from decimal import Decimal
from typing import Final, Literal

from tidelock.replica_agent.tables.column_defaults import plain_bytes

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
#: The integers that one physical type of Parquet has.
_SAME_PAGES: Final = frozenset({"tinyint", "smallint", "int"})
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
#: Most digits of the decimals that Parquet has as integers. The longer ones begin with the highest byte.
_INTEGER_DIGITS: Final = 18


def is_wider(new: str, old: str) -> bool:
    """Return whether a type has an equal for each value of another one, and is one to which it can change."""
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(new) > _INTEGERS.index(old)
    if (then := _DECIMAL.fullmatch(old)) and (now := _DECIMAL.fullmatch(new)):
        before, after = (int(then[1]), int(then[2])), (int(now[1]), int(now[2]))
        return after != before and after[1] >= before[1] and after[0] - after[1] >= before[0] - before[1]
    return (old, new) == ("float", "double")


def needs_other_pages(new: str, old: str) -> bool:
    """Return whether the pages of a type do not hold values of a wider one."""
    return not {old, new} <= _SAME_PAGES


def widened(new: str, old: str, value: bytes) -> bytes:
    """Return a value of a column as Parquet stores it (PLAIN) in the wider type."""
    if decimal := _DECIMAL.fullmatch(old):
        order: Literal["little", "big"] = "little" if int(decimal[1]) <= _INTEGER_DIGITS else "big"
        sign, digits, _ = Decimal(int.from_bytes(value, order, signed=True)).as_tuple()
        return plain_bytes(new, f"{Decimal((sign, digits, -int(decimal[2]))):f}")
    if old == "float":
        return plain_bytes(new, repr(struct.unpack("<f", value)[0]))
    return plain_bytes(new, str(int.from_bytes(value, "little", signed=True)))
