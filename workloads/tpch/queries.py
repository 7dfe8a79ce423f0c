"""The queries over the tables, in one text for Spark and for DuckDB. Pure.

Q1, Q3, Q6 and Q18 are those of TPC-H with its validation parameters; Q3 and Q18 have the order key as the
last column of their order, since the specification leaves open which of two equal rows comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Tables that the queries read.
TABLES: Final = ("customer", "orders", "lineitem")


@dataclass(frozen=True, slots=True)
class TpchQuery:
    """One query: a name for people, and its text with `//` for the division of integers."""

    name: str
    text: str

    @property
    def for_duckdb(self) -> str:
        """The text as DuckDB reads it."""
        return self.text

    @property
    def for_spark(self) -> str:
        """The text as Spark reads it."""
        return self.text.replace("//", "div")


def orders_and_lines(last_loaded_key: int) -> TpchQuery:
    """Compare every order with its line items.

    Columns: `orderkey`, `copies` (rows in orders), `lines` (rows in lineitem), `cents_off` (o_totalprice less
    the sum of the line items, see `orders.charge_cents`), `wrong` (how many orders are not as they must be).
    Each order above `last_loaded_key` has a row of its own, and so has each wrong one. All others share the
    row with key 0.

    An order is right when it is there once, in the partition of its date's year, when its line items are in
    that of the same year and numbered 1 to n without gap and repetition, and when its price is the sum over
    them. Bits stand for the line numbers: n rows with the lowest n bits set between them are n different
    numbers.
    """
    return TpchQuery(
        "orders and lines",
        f"""
with line as (
    select l_orderkey, l_year,
        cast(l_linenumber as int) as number,
        cast(l_extendedprice * 100 as bigint) as price,
        cast(l_discount * 100 as bigint) as discount,
        cast(l_tax * 100 as bigint) as tax
    from lineitem
), item as (
    select l_orderkey as k, l_year as y,
        count(*) as n,
        bit_or(1 << (number - 1)) as numbers,
        cast(sum(price * (100 - discount) // 100 * (100 + tax) // 100) as bigint) as cents
    from line
    group by l_orderkey, l_year
), sale as (
    select o_orderkey as k, o_year as y,
        count(*) as copies,
        max(case when year(o_orderdate) = o_year then 0 else 1 end) as misplaced,
        max(cast(o_totalprice * 100 as bigint)) as cents
    from orders
    group by o_orderkey, o_year
), pair as (
    select coalesce(sale.k, item.k) as k,
        coalesce(sale.copies, 0) as copies,
        coalesce(item.n, 0) as lines,
        coalesce(sale.cents, 0) - coalesce(item.cents, 0) as cents_off,
        case when sale.copies = 1 and sale.misplaced = 0 and sale.cents = item.cents
            and item.numbers + 1 = 1 << cast(item.n as int) then 0 else 1 end as wrong
    from sale full outer join item on sale.k = item.k and sale.y = item.y
)
select case when k > {last_loaded_key} or wrong = 1 then k else 0 end as orderkey,
    cast(sum(copies) as bigint) as copies,
    cast(sum(lines) as bigint) as lines,
    cast(sum(cents_off) as bigint) as cents_off,
    cast(sum(wrong) as bigint) as wrong
from pair
group by 1
order by 1
""",  # noqa: S608 - a number
    )


Q1: Final = TpchQuery(
    "Q1",
    """
select l_returnflag, l_linestatus,
    sum(l_quantity) as sum_qty,
    sum(l_extendedprice) as sum_base_price,
    sum(l_extendedprice * (1 - l_discount)) as sum_disc_price,
    sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge,
    avg(l_quantity) as avg_qty,
    avg(l_extendedprice) as avg_price,
    avg(l_discount) as avg_disc,
    count(*) as count_order
from lineitem
where l_shipdate <= date '1998-09-02'
group by l_returnflag, l_linestatus
order by l_returnflag, l_linestatus
""",
)

Q3: Final = TpchQuery(
    "Q3",
    """
select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority
from customer
join orders on c_custkey = o_custkey
join lineitem on l_orderkey = o_orderkey
where c_mktsegment = 'BUILDING' and o_orderdate < date '1995-03-15' and l_shipdate > date '1995-03-15'
group by l_orderkey, o_orderdate, o_shippriority
order by revenue desc, o_orderdate, l_orderkey
limit 10
""",
)

Q6: Final = TpchQuery(
    "Q6",
    """
select sum(l_extendedprice * l_discount) as revenue
from lineitem
where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'
  and l_discount between 0.05 and 0.07 and l_quantity < 24
""",
)

Q18: Final = TpchQuery(
    "Q18",
    """
select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) as quantity
from customer
join orders on c_custkey = o_custkey
join lineitem on o_orderkey = l_orderkey
where o_orderkey in (select l_orderkey from lineitem group by l_orderkey having sum(l_quantity) > 300)
group by c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
order by o_totalprice desc, o_orderdate, o_orderkey
limit 100
""",
)
