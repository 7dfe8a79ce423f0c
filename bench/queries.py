"""The TPC-H queries that are timed, with the validation parameters of the specification."""

from __future__ import annotations

from tidelock.demo.queries import Q1, Q3, Q18

TABLES = ("customer", "orders", "lineitem")

_Q6 = """
select sum(l_extendedprice * l_discount) as revenue
from lineitem
where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'
  and l_discount between 0.05 and 0.07 and l_quantity < 24
"""

#: Name -> text for Spark.
QUERIES: dict[str, str] = {
    "Q1": Q1.for_spark,
    "Q3": Q3.for_spark,
    "Q6": _Q6,
    "Q18": Q18.for_spark,
}
