"""The eight tables of TPC-H as tables of Tidelock. Pure.

Columns and types are those of the TPC-H specification (section 1.4), all of them required. Two columns are
added, the partition columns: `o_year`, the year of an order's date, and `l_year`, the same of the order
that a line item belongs to. So an order and its line items lie in partitions of the same year.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

MONEY: Final = pa.decimal128(15, 2)
_KEY: Final = pa.int64()
_INT: Final = pa.int32()
_TEXT: Final = pa.string()
_DATE: Final = pa.date32()


@dataclass(frozen=True, slots=True)
class TpchTable:
    """One table.

    Attributes:
        name: Its name.
        schema: Its columns.
        sort_by: Its key.
        partition_by: Its partition column, if any.
        source: The table in SQL, with its partition column, over the generated tables.
    """

    name: str
    schema: pa.Schema
    sort_by: tuple[str, ...]
    partition_by: tuple[str, ...] = ()
    source: str = ""

    @property
    def select(self) -> str:
        """The query for all its rows, partition by partition, so that one part is written after the other."""
        columns = ", ".join(self.schema.names)
        order = ", ".join((*self.partition_by, *self.sort_by))
        return f"select {columns} from {self.source or self.name} order by {order}"  # noqa: S608 - constants


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


REGION: Final = TpchTable(
    "region", _schema(r_regionkey=_KEY, r_name=_TEXT, r_comment=_TEXT), sort_by=("r_regionkey",)
)
NATION: Final = TpchTable(
    "nation",
    _schema(n_nationkey=_KEY, n_name=_TEXT, n_regionkey=_KEY, n_comment=_TEXT),
    sort_by=("n_nationkey",),
)
SUPPLIER: Final = TpchTable(
    "supplier",
    _schema(
        s_suppkey=_KEY,
        s_name=_TEXT,
        s_address=_TEXT,
        s_nationkey=_KEY,
        s_phone=_TEXT,
        s_acctbal=MONEY,
        s_comment=_TEXT,
    ),
    sort_by=("s_suppkey",),
)
CUSTOMER: Final = TpchTable(
    "customer",
    _schema(
        c_custkey=_KEY,
        c_name=_TEXT,
        c_address=_TEXT,
        c_nationkey=_KEY,
        c_phone=_TEXT,
        c_acctbal=MONEY,
        c_mktsegment=_TEXT,
        c_comment=_TEXT,
    ),
    sort_by=("c_custkey",),
)
PART: Final = TpchTable(
    "part",
    _schema(
        p_partkey=_KEY,
        p_name=_TEXT,
        p_mfgr=_TEXT,
        p_brand=_TEXT,
        p_type=_TEXT,
        p_size=_INT,
        p_container=_TEXT,
        p_retailprice=MONEY,
        p_comment=_TEXT,
    ),
    sort_by=("p_partkey",),
)
PARTSUPP: Final = TpchTable(
    "partsupp",
    _schema(ps_partkey=_KEY, ps_suppkey=_KEY, ps_availqty=_INT, ps_supplycost=MONEY, ps_comment=_TEXT),
    sort_by=("ps_partkey", "ps_suppkey"),
)
ORDERS: Final = TpchTable(
    "orders",
    _schema(
        o_orderkey=_KEY,
        o_custkey=_KEY,
        o_orderstatus=_TEXT,
        o_totalprice=MONEY,
        o_orderdate=_DATE,
        o_orderpriority=_TEXT,
        o_clerk=_TEXT,
        o_shippriority=_INT,
        o_comment=_TEXT,
        o_year=_INT,
    ),
    sort_by=("o_orderkey",),
    partition_by=("o_year",),
    source="(select *, cast(year(o_orderdate) as integer) as o_year from orders)",
)
LINEITEM: Final = TpchTable(
    "lineitem",
    _schema(
        l_orderkey=_KEY,
        l_partkey=_KEY,
        l_suppkey=_KEY,
        l_linenumber=_INT,
        l_quantity=MONEY,
        l_extendedprice=MONEY,
        l_discount=MONEY,
        l_tax=MONEY,
        l_returnflag=_TEXT,
        l_linestatus=_TEXT,
        l_shipdate=_DATE,
        l_commitdate=_DATE,
        l_receiptdate=_DATE,
        l_shipinstruct=_TEXT,
        l_shipmode=_TEXT,
        l_comment=_TEXT,
        l_year=_INT,
    ),
    sort_by=("l_orderkey", "l_linenumber"),
    partition_by=("l_year",),
    source="(select lineitem.*, cast(year(o_orderdate) as integer) as l_year "
    "from lineitem join orders on l_orderkey = o_orderkey)",
)

TABLES: Final = (REGION, NATION, SUPPLIER, CUSTOMER, PART, PARTSUPP, ORDERS, LINEITEM)
