"""A process with one session of Spark that runs jobs for workloads.

    python -m chaos.spark.jobs MASTER CONF

MASTER is Spark's, CONF a JSON object of settings. A request is a line of JSON on standard input,
``{"job", "args"}`` with the name of a method of :class:`Jobs`; the answer is a line on standard output,
``{"result"}`` or ``{"error"}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

import tidelock.spark as tl
from tidelock.client import Database, Transaction, connect
from tidelock.errors import LabelExistsError
from workloads import child

#: Lease of the data source's snapshots and transactions, in seconds. A driver that is killed holds back the
#: horizon for that long, and a run kills one every few minutes.
LEASE_S: Final = 60
#: No run measures Spark, which would take the processors of a small machine from the agents.
NICENESS: Final = 10


class Jobs:
    """The jobs.

    Args:
        spark: The session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._db: Database | None = None
        self._options: dict[str, str] = {}

    def join(self, urls: Sequence[str], token: str | None) -> None:
        """Use a cluster, by the addresses of its agents."""
        if self._db is not None:
            self._db.close()
        self._db = connect(list(urls), token=token, timeout_s=20.0)
        self._options = {"url": ",".join(urls), "leaseSeconds": str(LEASE_S)}
        if token:
            self._options["token"] = token

    def rows(
        self,
        tables: Sequence[str],
        queries: dict[str, str],
        *,
        pinned: bool,
        failover: bool,
    ) -> dict[str, Any]:
        """Return the rows of queries, by their names, over tables that are all attached at one CSN.

        Args:
            tables: The tables.
            queries: SQL, by names.
            pinned: At a replica that serves, by what the cluster says of itself; else at any.
            failover: Whether to go on at another replica.
        """
        db, replica = self._joined(), self._replica(pinned=pinned)
        with tl.attach(self._spark, db, tables=tables, replica=replica, failover=failover) as snap:
            rows = {
                name: [list(row) for row in self._spark.sql(sql).collect()] for name, sql in queries.items()
            }
            return {"csn": snap.csn, "rows": rows, "replica": replica}

    def tables(self, tables: Sequence[str], *, pinned: bool, failover: bool) -> dict[str, Any]:
        """Return comment, columns and rows of those of some tables that exist, all at one CSN.

        Args:
            tables: Their names; tables of these names come and go.
            pinned: As in `rows`.
            failover: As in `rows`.
        """
        db, replica = self._joined(), self._replica(pinned=pinned)
        attach = partial(tl.attach, self._spark, db, replica=replica, failover=failover)
        with attach(tables=()) as pin, db.snapshot(pin.csn) as at:
            there = {row.name.removeprefix("default."): row.properties for row in at.tables()}
            names = [name for name in tables if name in there]
            with attach(tables=names, csn=pin.csn) as snap:
                frames = {name: tl.read(self._spark, snap, name) for name in names}
                rows = {
                    name: [there[name]["comment"], frame.columns, [list(row) for row in frame.collect()]]
                    for name, frame in frames.items()
                }
            return {"csn": pin.csn, "rows": rows, "replica": replica}

    def _replica(self, *, pinned: bool) -> str | None:
        """Return a replica that serves, by what the cluster says of itself; None = any."""
        serving = [row["id"] for row in self._joined().status()["replicas"] if row["state"] == "serving"]
        return random.choice(serving) if pinned and serving else None

    def save(self, table: str, number: int, stamp: int, label: str, *, source: bool) -> int | None:
        """Write a row under a label, unless that was done; return the CSN.

        Args:
            table: The table.
            number: Of the job: the first column.
            stamp: The second column.
            label: Its label.
            source: By the data source `tidelock`, else by `tl.write` in a transaction.
        """
        frame = self._spark.sql(f"select {number}L as job, {stamp}L as stamp")
        if source:
            options = {**self._options, "table": table, "label": label}
            frame.write.format("tidelock").options(**options).mode("append").save()
        else:
            try:
                with self._joined().begin(label) as tx:
                    tl.write(frame, tx, table)
            except LabelExistsError as error:
                csn: int = error.details["csn"]
                return csn
        found = self._joined().label(label)
        return None if found is None else found.csn

    def move(self, source: str, target: str, where: str) -> int | None:
        """Move rows (p, n) from one table into another, by a delete and a merge of Spark; return the CSN.

        Args:
            source: The table that has them.
            target: The table that gets them.
            where: Which rows.
        """
        with self._joined().begin(fresh=True) as tx:
            with tl.attach(self._spark, self._joined(), tables=[source], csn=tx.snapshot_csn) as snap:
                rows = tl.read(self._spark, snap, source).where(where).collect()
            if rows:
                values = ", ".join(f"({row.p}L, {row.n}L)" for row in rows)
                deleted = tl.delete(self._spark, tx, source, where).rows_deleted
                moved = self._spark.sql(f"select * from values {values} as t(p, n)")  # noqa: S608 - numbers
                inserted = tl.merge(moved, tx, target, on="n").rows_inserted
                assert deleted == inserted == len(rows), (deleted, inserted, rows)
        return tx.csn

    def stream(self, source: str, targets: Sequence[str], checkpoint: str) -> int:
        """Run a streaming query up to what its source has now; return the number of rows of its batches.

        Each batch goes into all targets in one transaction.
        """

        def load(tx: Transaction, rows: DataFrame, _batch: int) -> None:
            for target in targets:
                tl.write(rows, tx, target)

        rows = self._spark.readStream.format("tidelock").options(**self._options, table=source).load()
        writer = rows.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = writer.foreachBatch(tl.foreach_batch(self._joined(), load)).start()
        query.awaitTermination()
        return sum(batch["numInputRows"] for batch in query.recentProgress)

    def _joined(self) -> Database:
        assert self._db is not None, "join comes first"
        return self._db


@contextlib.contextmanager
def _begun() -> Iterator[Jobs]:
    os.nice(NICENESS)
    builder = SparkSession.builder.master(sys.argv[1])
    for name, value in json.loads(sys.argv[2]).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    yield Jobs(spark)
    spark.stop()


if __name__ == "__main__":
    child.serve(_begun())
