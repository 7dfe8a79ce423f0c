"""A data directory with two tables, and statements over it."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from tests.support.replicas.datadir import DataDir
from tidelock.csnlog.core.ids import Csn
from tidelock.replica_agent.sql.pool import SqlPool, SqlRequest

ORDERS, ITEMS = "default.orders", "sales.items"


def orders_and_items(path: Path) -> DataDir:
    """Make `orders` by year and `sales.items`, with commits at CSN 4 and 5 and a removal at 6."""
    made = DataDir(path)
    orders = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("year", pa.int32())])
    items = pa.schema([("order_id", pa.int64()), ("price", pa.decimal128(9, 2))])
    made.create_table(2, "orders", orders, partition_by=["year"])
    made.create_table(3, "sales.items", items)
    old = {"id": [1, 2, 3], "customer": ["ann", "ben", None], "year": [1994, 1994, 1995]}
    [first, *_] = made.insert(
        4,
        {ORDERS: pa.table(old, orders), ITEMS: pa.table({"order_id": [1, 1], "price": [1, 2]}, items)},
        pack=True,
    )
    made.insert(5, {ORDERS: pa.table({"id": [4], "customer": ["ann"], "year": [1995]}, orders)})
    made.remove(6, first.part)
    return made


def request(sql: str, *params: Any, csn: int = 6, tid: str | None = None) -> SqlRequest:
    """Return a statement, by default at the newest CSN."""
    return SqlRequest(csn=Csn(csn), tid=tid, sql=sql, params=params)


async def table(pool: SqlPool, sql: str, *params: Any, csn: int = 6, tid: str | None = None) -> pa.Table:
    """Return the whole result of a statement."""
    async with aclosing(pool.run(request(sql, *params, csn=csn, tid=tid))) as pieces:
        return pa.ipc.open_stream(b"".join([piece async for piece in pieces])).read_all()


async def rows(
    pool: SqlPool, sql: str, *params: Any, csn: int = 6, tid: str | None = None
) -> list[tuple[Any, ...]]:
    """Return the rows of a statement."""
    return [tuple(row.values()) for row in (await table(pool, sql, *params, csn=csn, tid=tid)).to_pylist()]


def workers() -> list[psutil.Process]:
    """Return the SQL processes that this process has started."""
    return [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "tidelock.replica_agent.sql.worker" in child.cmdline()
    ]
