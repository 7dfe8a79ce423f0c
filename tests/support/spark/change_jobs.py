"""Changes of rows by Spark that a session of tests/support/spark/jobs.py makes for a test."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it

import tidelock.spark as tl
from tidelock.client import Transaction, connect
from tidelock.wire.statements import ChangeResult


class ChangeJobs:
    """Merges, updates and deletes."""

    _spark: SparkSession

    def change(
        self, url: str, changes: list[dict[str, Any]], *, optimize: str | None = None
    ) -> list[dict[str, int]]:
        """Make changes in one transaction; return their results.

        Args:
            url: URL of an agent.
            changes: Each has `what` ("merge", "update", "delete" or "write"), and its arguments; the rows of
                a merge or a write are those of `query`.
            optimize: A table whose parts compaction merges when the transaction has begun.
        """
        with connect(url) as db, db.begin(fresh=True) as tx:
            if optimize is not None:
                db.optimize(optimize)
            done = [self._done(self._change(tx, **change)) for change in changes]
            tx.commit(wait="copies")  # so that the next read of any client has it
        return done

    def _change(self, tx: Transaction, what: str, table: str, **how: Any) -> ChangeResult:
        match what:
            case "merge":
                return tl.merge(self._spark.sql(how.pop("query")), tx, table, **how)
            case "update":
                return tl.update(self._spark, tx, table, **how)
            case "delete":
                return tl.delete(self._spark, tx, table, **how)
            case "write":
                tl.write(self._spark.sql(how["query"]), tx, table)
                return ChangeResult()
        raise ValueError(what)

    @staticmethod
    def _done(result: ChangeResult) -> dict[str, int]:
        return {name: getattr(result, name) for name in result.__struct_fields__}

    def change_by_columns(self, url: str, table: str) -> list[dict[str, int]]:
        """Change rows of a table (k, v) by expressions and values: v becomes 2 v, and null for k = 3."""
        with connect(url) as db, db.begin() as tx:
            doubled = tl.update(self._spark, tx, table, {"v": F.col("v") * 2}, F.col("k") != 3)
            tx.commit(wait="copies")
        with connect(url) as db, db.begin() as tx:
            emptied = tl.update(self._spark, tx, table, {"v": None}, "k = 3")
            tx.commit(wait="copies")
        return [self._done(doubled), self._done(emptied)]
