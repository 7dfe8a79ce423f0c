"""A dashboard: several queries over three tables at one CSN, while writers go on.

Each sale is one transaction over all three tables: an order, its lines, and its payment. A dashboard that
runs one query after the other would see new sales in between; at a pinned snapshot the figures agree to
the cent, and `refresh` moves all tables together. The queries run in Spark, on any session.

    python -m examples.dashboard [--url http://host:port]
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

import tidelock.spark as tl
from examples.surroundings import database, ensure_table, session, url_of
from tidelock.client import Database

MONEY: Final = pa.decimal128(12, 2)
ORDERS: Final = pa.schema([("o_id", pa.string()), ("o_country", pa.string()), ("o_total", MONEY)])
LINES: Final = pa.schema([("l_order", pa.string()), ("l_article", pa.string()), ("l_price", MONEY)])
PAYMENTS: Final = pa.schema([("p_order", pa.string()), ("p_amount", MONEY)])
COUNTRIES: Final = ("CH", "DE", "FR")
ARTICLES: Final = ("bread", "cheese", "wine", "olives")
WRITERS: Final = 2
ROUNDS: Final = 3
#: Between two sales of a writer, in seconds.
PAUSE_S: Final = 0.25

#: The panels: their titles and queries.
PANELS: Final = {
    "revenue by country": "SELECT o_country, count(*), sum(o_total) FROM shop_orders GROUP BY 1 ORDER BY 1",
    "best article": ("SELECT l_article, sum(l_price) FROM shop_lines GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 1"),
    "totals": (
        "SELECT (SELECT sum(o_total) FROM shop_orders), (SELECT sum(l_price) FROM shop_lines), "
        "(SELECT sum(p_amount) FROM shop_payments)"
    ),
    "sales without a payment, or with another amount": (
        "SELECT count(*) FROM shop_orders FULL JOIN shop_payments ON o_id = p_order "
        "WHERE o_total IS DISTINCT FROM p_amount"
    ),
}


def sell(db: Database, chance: random.Random) -> None:
    """Make one sale: a row in two tables and several in the third, in one transaction."""
    order = str(uuid.uuid4())
    lines = [
        {
            "l_order": order,
            "l_article": chance.choice(ARTICLES),
            "l_price": Decimal(chance.randint(100, 5000)) / 100,
        }
        for _ in range(chance.randint(1, 4))
    ]
    total = sum((line["l_price"] for line in lines), Decimal(0))
    with db.begin() as tx:
        tx.insert(
            "shop.orders",
            pa.Table.from_pylist(
                [{"o_id": order, "o_country": chance.choice(COUNTRIES), "o_total": total}], ORDERS
            ),
        )
        tx.insert("shop.lines", pa.Table.from_pylist(lines, LINES))
        tx.insert("shop.payments", pa.Table.from_pylist([{"p_order": order, "p_amount": total}], PAYMENTS))


@contextmanager
def writers(db: Database) -> Iterator[None]:
    """Let writers sell until the end of the block; the error of a failed writer is raised there."""
    ended = threading.Event()
    errors: list[Exception] = []

    def work(number: int) -> None:
        chance = random.Random(number)
        try:
            while not ended.wait(PAUSE_S):
                sell(db, chance)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def show(spark: SparkSession, csn: int) -> None:
    """Print all panels, and check that they agree; RuntimeError if not."""
    print(f"-- at CSN {csn}")
    found = {title: spark.sql(query).collect() for title, query in PANELS.items()}
    for title, rows in found.items():
        print(f"   {title}: " + "; ".join(" ".join(map(str, row)) for row in rows))
    (totals,), ((unpaid,),) = found["totals"], found["sales without a payment, or with another amount"]
    by_country = sum((row[2] for row in found["revenue by country"]), Decimal(0))
    if unpaid or {*totals} != {by_country}:
        raise RuntimeError(f"the panels do not agree at CSN {csn}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Show the dashboard some times, while sales are made."""
    url = url_of(arguments, __doc__)
    with database(url) as db, session() as spark:
        for table, schema in (("shop.orders", ORDERS), ("shop.lines", LINES), ("shop.payments", PAYMENTS)):
            ensure_table(db, table, schema)
        sell(db, random.Random(0))
        with writers(db), tl.attach(spark, db, tables=["shop.orders", "shop.lines", "shop.payments"]) as snap:
            for number in range(ROUNDS):
                if number:
                    snap.refresh()  # all three views, together
                show(spark, snap.csn)
                with db.snapshot() as newest:
                    print(f"   meanwhile the shop has come to CSN {newest.csn}")


if __name__ == "__main__":
    main()
