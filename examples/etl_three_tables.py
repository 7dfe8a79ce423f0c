"""Streaming ETL over three tables: documents arrive as JSON, and become orders, lines and rejected ones.

Every micro-batch is one transaction, so at any CSN the three tables agree: each document that has arrived is
an order with all its lines, or a rejected one. A batch takes effect once: the example makes Spark forget that
its last batch has ended, as if it was killed between the commit and its own checkpoint, and send it again.

    python -m examples.etl_three_tables [--url http://host:port]
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import tidelock.spark as tl
from examples.surroundings import database, ensure_table, session, url_of
from tidelock.client import Database, Transaction

MONEY: Final = pa.decimal128(12, 2)
ORDERS: Final = pa.schema([("o_id", pa.string()), ("o_customer", pa.string()), ("o_total", MONEY)])
LINES: Final = pa.schema(
    [("l_order", pa.string()), ("l_article", pa.string()), ("l_count", pa.int32()), ("l_price", MONEY)]
)
REJECTED: Final = pa.schema([("r_document", pa.string()), ("r_reason", pa.string())])
#: The form of a document; what does not have it is rejected.
DOCUMENT: Final = (
    "id string, customer string, items array<struct<article: string, count: int, price: decimal(12, 2)>>"
)


def load(tx: Transaction, df: DataFrame, batch_id: int) -> None:
    """Write one micro-batch, as a part of the transaction that `tl.foreach_batch` has begun for it."""
    documents = df.select("value", sf.from_json("value", DOCUMENT).alias("d")).cache()
    is_order = sf.expr("d.id IS NOT NULL AND d.customer IS NOT NULL AND size(d.items) > 0")
    orders = documents.where(is_order)
    total = sf.expr(
        "CAST(aggregate(d.items, CAST(0 AS decimal(22, 2)), (sum, item) -> "
        "CAST(sum + item.count * item.price AS decimal(22, 2))) AS decimal(12, 2))"
    )
    tl.write(
        orders.select(
            sf.col("d.id").alias("o_id"), sf.col("d.customer").alias("o_customer"), total.alias("o_total")
        ),
        tx,
        "etl.orders",
    )
    lines = orders.select(sf.col("d.id").alias("l_order"), sf.explode("d.items").alias("item"))
    tl.write(
        lines.select(
            "l_order",
            sf.col("item.article").alias("l_article"),
            sf.col("item.count").alias("l_count"),
            sf.col("item.price").alias("l_price"),
        ),
        tx,
        "etl.lines",
    )
    tl.write(
        documents.where(~is_order | is_order.isNull()).select(
            sf.col("value").alias("r_document"), sf.lit("no id, customer or items").alias("r_reason")
        ),
        tx,
        "etl.rejected",
    )
    print(f"batch {batch_id}: {documents.count()} documents, in transaction {tx.tid}")
    documents.unpersist()


def run_query(spark: SparkSession, db: Database, inbox: Path, checkpoint: Path) -> None:
    """Load the files that have arrived since the last run, one file in each batch."""
    arriving = spark.readStream.option("maxFilesPerTrigger", 1).text(str(inbox))
    writer = arriving.writeStream.foreachBatch(tl.foreach_batch(db, load))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def arrive(inbox: Path, orders: int, *, broken: int) -> None:
    """Put a file with so many documents into the inbox, some of them broken."""
    documents: list[dict[str, Any]] = [
        {
            "id": str(uuid.uuid4()),
            "customer": f"customer {number % 3}",
            "items": [
                {"article": f"article {item}", "count": item + 1, "price": f"{item + 1}.50"}
                for item in range(3)
            ],
        }
        for number in range(orders)
    ]
    documents += [{"id": str(uuid.uuid4()), "items": []} for _ in range(broken)]
    text = "".join(json.dumps(document) + "\n" for document in documents)
    (inbox / f"{uuid.uuid4()}.json").write_text(text, encoding="utf-8")


def forget_last_batch(checkpoint: Path) -> int:
    """Put the checkpoint into the state that a driver leaves if it is killed right after the commit."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for path in commits.glob(f"*{last}*"):
        path.unlink()
    return last


def state(db: Database) -> dict[str, Any]:
    """All three tables, at one CSN."""
    with db.snapshot() as snap:
        (row,) = snap.sql(
            "SELECT (SELECT count(*) FROM etl.orders) AS orders, (SELECT count(*) FROM etl.lines) AS lines, "
            "(SELECT count(*) FROM etl.rejected) AS rejected, "
            "(SELECT coalesce(sum(o_total), 0) FROM etl.orders) AS ordered, "
            "(SELECT coalesce(sum(l_count * l_price), 0) FROM etl.lines) AS summed_up"
        ).to_pylist()
        return {"csn": snap.csn, **row}


def show(db: Database) -> dict[str, Any]:
    """Print the tables' state and return it; RuntimeError if they do not agree."""
    found = state(db)
    print(
        f"at CSN {found['csn']}: {found['orders']} orders over {found['ordered']}, {found['lines']} lines "
        f"over {found['summed_up']}, {found['rejected']} rejected"
    )
    if found["ordered"] != found["summed_up"] or found["lines"] != 3 * found["orders"]:
        raise RuntimeError(f"the tables do not agree: {found}")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the query twice: over the existing files, and, after a crash, over the files that arrived since."""
    url = url_of(arguments, __doc__)
    with database(url) as db, session() as spark, tempfile.TemporaryDirectory() as folder:
        inbox, checkpoint = Path(folder, "inbox"), Path(folder, "checkpoint")
        inbox.mkdir()
        ensure_table(db, "etl.orders", ORDERS)
        ensure_table(db, "etl.lines", LINES)
        ensure_table(db, "etl.rejected", REJECTED)
        before = show(db)

        arrive(inbox, 40, broken=2)
        arrive(inbox, 30, broken=1)
        run_query(spark, db, inbox, checkpoint)
        show(db)

        repeated = forget_last_batch(checkpoint)
        arrive(inbox, 20, broken=0)
        print(f"the query starts again; Spark gives it batch {repeated} a second time")
        run_query(spark, db, inbox, checkpoint)
        after = show(db)
        if (after["orders"] - before["orders"], after["rejected"] - before["rejected"]) != (90, 3):
            raise RuntimeError(f"documents were lost or loaded twice: {before}, {after}")
        print("90 orders and 3 rejected documents have arrived, each is there once")


if __name__ == "__main__":
    main()
