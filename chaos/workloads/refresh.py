"""TPC-H's refresh functions: orders come and go together with their line items.

RF1 inserts an order and its line items in one transaction, RF2 deletes both. Each order says how many line
items it has and what they cost, so one query over both tables finds every order or line item without its
counterpart. Spark runs that query, too.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Attempt, Found, Session
from chaos.judging import presence
from chaos.record.history import Operation, ended, lines
from chaos.record.violation import Violation
from chaos.spark.job import SparkJob
from chaos.spark.reading import Question, reading
from chaos.workloads.workload import Client, Workload
from tidelock.client import Database, Snapshot, Transaction

ORDERS, LINES = "refresh_orders", "refresh_lineitem"
ORDERS_SCHEMA: Final = pa.schema(
    [
        pa.field("o_orderkey", pa.int64(), nullable=False),
        ("o_lines", pa.int64()),
        ("o_totalprice", pa.int64()),
        ("o_orderdate", pa.date32()),
    ]
)
LINES_SCHEMA: Final = pa.schema(
    [
        pa.field("l_orderkey", pa.int64(), nullable=False),
        pa.field("l_linenumber", pa.int64(), nullable=False),
        ("l_extendedprice", pa.int64()),
    ]
)
#: Orders with other line items than they say, and line items without an order; SQL of DuckDB and Spark.
MISMATCH: Final = f"""
    select coalesce(o_orderkey, l_orderkey) as k, o_lines, o_totalprice, n, total
    from {ORDERS} full outer join (
        select l_orderkey, count(*) as n, cast(sum(l_extendedprice) as bigint) as total
        from {LINES} group by l_orderkey
    ) on o_orderkey = l_orderkey
    where o_orderkey is null or l_orderkey is null or n <> o_lines or total <> o_totalprice
    order by k
"""
KEYS: Final = f"select o_orderkey as k from {ORDERS} order by k"
_VALUE: Final[list[Operation]] = [["r", ORDERS, None]]
#: Orders that one transaction inserts or deletes at most, and the number that is kept.
_AT_ONCE, _KEPT = 4, 60
_WRITERS, _WRITE_PAUSE_S, _READ_PAUSE_S = 2, 2.0, 3.0


class Refresh(Workload):
    """RF1, RF2, and the check of each order against its line items."""

    name: ClassVar[str] = "refresh"
    promise: ClassVar[str] = "Each order has its line items, and each line item its order, at every CSN."

    def prepare(self, db: Database) -> None:
        """Create both tables."""
        self._orders = itertools.count(1)
        self._there: list[int] = []
        self.create(db, ORDERS, ORDERS_SCHEMA, sort_by=["o_orderkey"])
        self.create(db, LINES, LINES_SCHEMA, sort_by=["l_orderkey", "l_linenumber"])

    def clients(self) -> Sequence[Client]:
        """Return writers, and readers of all kinds."""
        writers = [self.acting(self._refresh, _WRITE_PAUSE_S) for _ in range(_WRITERS)]
        return [*writers, *self.readers(self._read, _READ_PAUSE_S)]

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return the check in Spark, by each way to read."""
        queries = {"keys": KEYS, "mismatch": MISMATCH}
        question = Question(_VALUE, queries, _found_by_spark, tables=(ORDERS, LINES))
        return reading(self, lambda: question)

    def _refresh(self, session: Session) -> None:
        if len(self._there) > _KEPT:
            oldest = [self._there.pop(0) for _ in range(random.randint(1, _AT_ONCE))]
            session.write(partial(_rf2, oldest))
            return
        keys: list[int] = []

        def attempt() -> Attempt:
            keys[:] = [next(self._orders) for _ in range(random.randint(1, _AT_ONCE))]
            return _rf1(keys)

        if session.write(attempt) is not None:
            self._there += keys

    def _read(self, session: Session, csn: int | None) -> int | None:
        return session.read(_VALUE, look, csn=csn, f="read")

    def judge(self, db: Database) -> Sequence[Violation]:
        """Check both tables at each replica, and judge all reads."""
        self.read_everywhere(db, _VALUE, lambda _, snap: look(snap), "read")
        all_lines = list(ended(lines(self.path)))
        return [*mismatches(all_lines), *presence.judged(self.name, all_lines)]


def _rf1(keys: Sequence[int]) -> Attempt:
    prices = {key: [random.randint(1, 1000) for _ in range(random.randint(1, 7))] for key in keys}
    orders = [
        {"o_orderkey": key, "o_lines": len(some), "o_totalprice": sum(some)} for key, some in prices.items()
    ]
    items = [
        {"l_orderkey": key, "l_linenumber": number, "l_extendedprice": price}
        for key, some in prices.items()
        for number, price in enumerate(some, 1)
    ]

    def work(tx: Transaction) -> None:
        tx.insert(ORDERS, pa.Table.from_pylist(orders, ORDERS_SCHEMA))
        tx.insert(LINES, pa.Table.from_pylist(items, LINES_SCHEMA))

    return Attempt([["add", ORDERS, key] for key in keys], work, f="add")


def _rf2(keys: Sequence[int]) -> Attempt:
    some = ", ".join("?" for _ in keys)

    def work(tx: Transaction) -> None:
        tx.delete(ORDERS, f"o_orderkey in ({some})", keys)
        tx.delete(LINES, f"l_orderkey in ({some})", keys)

    return Attempt([["remove", ORDERS, key] for key in keys], work, f="remove")


def look(snap: Snapshot) -> Found:
    """Return the orders, and what does not match."""
    wrong = [list(row.values()) for row in snap.sql(MISMATCH).to_pylist()]
    return _found(snap.sql(KEYS)["k"].to_pylist(), wrong)


def _found_by_spark(rows: dict[str, list[list[Any]]]) -> Found:
    return _found([key for [key] in rows["keys"]], rows["mismatch"])


def _found(keys: Sequence[int], wrong: Sequence[Sequence[Any]]) -> Found:
    return Found([["r", ORDERS, list(keys)]], {"wrong": wrong or None})


def mismatches(all_lines: Iterable[dict[str, Any]]) -> list[Violation]:
    """Return the reads with orders or line items that do not match."""
    return [
        Violation(
            Refresh.name,
            "orders have their line items",
            f"Expected that every order has the line items that it names at CSN {line['snapshot']} of "
            f"{line.get('replica')} (operation {line['index']}), found (key, lines and total of the order, "
            f"lines and total that are there) {line['wrong']}.",
            line["time"],
        )
        for line in all_lines
        if line.get("wrong")
    ]
