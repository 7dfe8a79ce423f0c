"""New orders with their line items, as the refresh function RF1 of TPC-H brings them.

Values are drawn as the specification says for the generated ones (section 4.2.3). Keys are not: RF1 fills
gaps between the generated keys, here they lie above all of them, so that every key tells which batch made
it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any, Final

import pyarrow as pa

from workloads.tpch.tables import LINEITEM, ORDERS

#: First and last date of an order (STARTDATE, and ENDDATE less the 151 days until its last line is
#: delivered).
FIRST_DATE: Final = dt.date(1992, 1, 1)
LAST_DATE: Final = dt.date(1998, 8, 2)
#: The specification's CURRENTDATE: what was shipped or received later is still open.
CURRENT_DATE: Final = dt.date(1995, 6, 17)
LINES_MAX: Final = 7

_PRIORITIES: Final = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
_INSTRUCTIONS: Final = ("DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN")
_MODES: Final = ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")
_WORDS: Final = (
    "quick",
    "silent",
    "final",
    "bold",
    "packages",
    "deposits",
    "accounts",
    "sleep",
    "wake",
    "haggle",
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TpchScale:
    """How many customers, parts, suppliers and clerks there are to be named."""

    customers: int
    parts: int
    suppliers: int
    clerks: int

    @classmethod
    def of(cls, factor: float) -> TpchScale:
        """The numbers at a scale factor."""

        def scaled(at_one: int) -> int:
            return max(1, int(at_one * factor))

        return cls(
            customers=scaled(150_000), parts=scaled(200_000), suppliers=scaled(10_000), clerks=scaled(1_000)
        )


@dataclass(frozen=True, slots=True)
class OrderBatch:
    """Orders of one year with their line items.

    Attributes:
        year: Of all order dates.
        first_key: Of the first order; the others follow without gaps.
        lines: How many line items each order has.
        orders: Rows of the table `orders`.
        lineitem: Rows of the table `lineitem`.
    """

    year: int
    first_key: int
    lines: tuple[int, ...]
    orders: pa.Table
    lineitem: pa.Table

    @property
    def keys(self) -> list[str]:
        """The orders' keys, as a history has them (workloads/history.py)."""
        return [str(key) for key in range(self.first_key, self.first_key + len(self.lines))]

    @property
    def rows(self) -> list[tuple[int, int]]:
        """The rows of each order in both tables."""
        return [(1, count) for count in self.lines]


def new_batch(random: Random, scale: TpchScale, first_key: int, count: int) -> OrderBatch:
    """Draw a batch of `count` orders."""
    year = random.randint(FIRST_DATE.year, LAST_DATE.year)
    orders: list[Row] = []
    lineitem: list[Row] = []
    lines = []
    for key in range(first_key, first_key + count):
        date = _date_in(random, year)
        items = [
            _line(random, scale, key, number, date) for number in range(1, random.randint(1, LINES_MAX) + 1)
        ]
        orders.append(_order(random, scale, key, date, items))
        lineitem += items
        lines.append(len(items))
    return OrderBatch(
        year=year,
        first_key=first_key,
        lines=tuple(lines),
        orders=pa.Table.from_pylist(orders, schema=ORDERS.schema),
        lineitem=pa.Table.from_pylist(lineitem, schema=LINEITEM.schema),
    )


def charge_cents(extended_cents: int, discount_percent: int, tax_percent: int) -> int:
    """Return the amount that a line item adds to its order's total, in cents.

    That is l_extendedprice * (1 - l_discount) * (1 + l_tax) in the integer arithmetic of TPC-H's own
    generator, which drops what is less than a cent after each of the two factors. Sums of it equal
    o_totalprice exactly, for generated orders and new ones (the specification leaves the rounding open).
    """
    return extended_cents * (100 - discount_percent) // 100 * (100 + tax_percent) // 100


def retail_price_cents(part: int) -> int:
    """The specification's p_retailprice of a part, in cents."""
    return 90_000 + part // 10 % 20_001 + 100 * (part % 1_000)


def _order(random: Random, scale: TpchScale, key: int, date: dt.date, items: Sequence[Row]) -> Row:
    total = sum(
        charge_cents(_cents(item["l_extendedprice"]), _cents(item["l_discount"]), _cents(item["l_tax"]))
        for item in items
    )
    states = {item["l_linestatus"] for item in items}
    return {
        "o_orderkey": key,
        "o_custkey": _customer(random, scale),
        "o_orderstatus": states.pop() if len(states) == 1 else "P",
        "o_totalprice": _money(total),
        "o_orderdate": date,
        "o_orderpriority": random.choice(_PRIORITIES),
        "o_clerk": f"Clerk#{random.randint(1, scale.clerks):09}",
        "o_shippriority": 0,
        "o_comment": _comment(random),
        "o_year": date.year,
    }


def _line(random: Random, scale: TpchScale, key: int, number: int, date: dt.date) -> Row:
    part = random.randint(1, scale.parts)
    quantity = random.randint(1, 50)
    shipped = date + dt.timedelta(days=random.randint(1, 121))
    received = shipped + dt.timedelta(days=random.randint(1, 30))
    return {
        "l_orderkey": key,
        "l_partkey": part,
        "l_suppkey": _supplier(random, scale, part),
        "l_linenumber": number,
        "l_quantity": Decimal(quantity),
        "l_extendedprice": _money(quantity * retail_price_cents(part)),
        "l_discount": _money(random.randint(0, 10)),
        "l_tax": _money(random.randint(0, 8)),
        "l_returnflag": random.choice("RA") if received <= CURRENT_DATE else "N",
        "l_linestatus": "O" if shipped > CURRENT_DATE else "F",
        "l_shipdate": shipped,
        "l_commitdate": date + dt.timedelta(days=random.randint(30, 90)),
        "l_receiptdate": received,
        "l_shipinstruct": random.choice(_INSTRUCTIONS),
        "l_shipmode": random.choice(_MODES),
        "l_comment": _comment(random),
        "l_year": date.year,
    }


def _date_in(random: Random, year: int) -> dt.date:
    last = min(dt.date(year, 12, 31), LAST_DATE)
    return dt.date.fromordinal(random.randint(dt.date(year, 1, 1).toordinal(), last.toordinal()))


def _customer(random: Random, scale: TpchScale) -> int:
    """A customer; every third one never orders anything."""
    while (key := random.randint(1, scale.customers)) % 3 == 0:
        pass
    return key


def _supplier(random: Random, scale: TpchScale, part: int) -> int:
    """One of the four suppliers of a part."""
    count = scale.suppliers
    return (part + random.randrange(4) * (count // 4 + (part - 1) // count)) % count + 1


def _comment(random: Random) -> str:
    return " ".join(random.choices(_WORDS, k=random.randint(2, 6)))


def _money(cents: int) -> Decimal:
    return Decimal(cents).scaleb(-2)


def _cents(money: Decimal) -> int:
    return int(money.scaleb(2))
