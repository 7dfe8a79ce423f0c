"""The measured formats: plain Parquet files, Delta, Iceberg and Tidelock, each behind the same few calls.

All write Parquet with Snappy, and are as they come in everything else. Spark's local file system forces
nothing to disk, and neither Delta nor Iceberg asks it to: what they have acknowledged a power cut may take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import tidelock.spark as tl
from bench.spark_peers.session import ICEBERG
from bench.tools.statements import BenchMerge, BenchStatement
from tidelock.client import Database, Transaction
from workloads.tpch.tables import TpchTable


class SparkFormat(Protocol):
    """A table format that Spark reads and writes.

    Attributes:
        name: For the report.
        note: What readers of the figures should know.
    """

    name: str
    note: str

    def create(self, table: TpchTable, like: DataFrame) -> None:
        """Make an empty table; `like` has its columns."""

    def append(self, table: TpchTable, rows: DataFrame) -> None:
        """Write rows and commit them."""

    def everywhere(self) -> bool:
        """Wait until every copy has the last commit; return whether there are copies elsewhere."""

    def reading(self, tables: Sequence[TpchTable]) -> AbstractContextManager[dict[str, DataFrame]]:
        """Open the newest state of tables, by name."""

    def files(self, table: TpchTable) -> list[Path]:
        """Return the files of a table that nobody has forced to disk."""


class ChangingFormat(SparkFormat, Protocol):
    """A table format with deletes, updates and merges."""

    def change(self, table: TpchTable, statement: BenchStatement) -> None:
        """Run a statement and commit it."""

    def merge(self, table: TpchTable, rows: DataFrame, statement: BenchMerge) -> None:
        """Bring rows into a table by Spark, and commit that."""


class _LocalFormat:
    """The common part of formats that write one copy into a local folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder

    def _path(self, table: TpchTable) -> str:
        return str(self._folder / table.name)

    def everywhere(self) -> bool:
        """There is one copy."""
        return False

    def files(self, table: TpchTable) -> list[Path]:
        """Return all files of the table."""
        return [path for path in Path(self._path(table)).rglob("*") if path.is_file()]


class Plain(_LocalFormat):
    """Parquet files in a folder: Spark without a table format, to which the others are compared."""

    name = "plain Parquet"
    note = "one copy, nothing forced to disk; no transactions"

    def create(self, table: TpchTable, like: DataFrame) -> None:
        """The first write makes the folder."""

    def append(self, table: TpchTable, rows: DataFrame) -> None:
        """Add files."""
        rows.write.mode("append").partitionBy(*table.partition_by).parquet(self._path(table))

    @contextmanager
    def reading(self, tables: Sequence[TpchTable]) -> Iterator[dict[str, DataFrame]]:
        """List the files."""
        yield {table.name: self._spark.read.parquet(self._path(table)) for table in tables}


class Delta(_LocalFormat):
    """Delta Lake, by paths."""

    name = "Delta"
    note = "one copy, nothing forced to disk"

    def create(self, table: TpchTable, like: DataFrame) -> None:
        """Commit a schema."""
        self._spark.sql(f"create table {self._name(table)} ({_columns(like)}) using delta{_parts(table)}")

    def append(self, table: TpchTable, rows: DataFrame) -> None:
        """Commit an append."""
        writer = rows.write.format("delta").mode("append")
        writer.partitionBy(*table.partition_by).save(self._path(table))

    def _name(self, table: TpchTable) -> str:
        return f"delta.`{self._path(table)}`"

    @contextmanager
    def reading(self, tables: Sequence[TpchTable]) -> Iterator[dict[str, DataFrame]]:
        """Load the newest version."""
        load = self._spark.read.format("delta").load
        yield {table.name: load(self._path(table)) for table in tables}

    def change(self, table: TpchTable, statement: BenchStatement) -> None:
        """Run it as SQL."""
        self._spark.sql(_text(self._name(table), statement))

    def merge(self, table: TpchTable, rows: DataFrame, statement: BenchMerge) -> None:
        """Run it as SQL."""
        _merge(self._spark, self._name(table), rows, statement)


class Iceberg(_LocalFormat):
    """Apache Iceberg in the session's catalog, a folder."""

    name = "Iceberg"
    note = "one copy, nothing forced to disk; the catalog is a folder; Snappy in place of its Zstandard"

    def create(self, table: TpchTable, like: DataFrame) -> None:
        """Add it to the catalog."""
        # The default is Zstandard; the formats are compared here, not their codecs.
        self._spark.sql(
            f"create table {self._name(table)} ({_columns(like)}) using iceberg{_parts(table)} "
            "tblproperties ('write.parquet.compression-codec' = 'snappy')"
        )

    def append(self, table: TpchTable, rows: DataFrame) -> None:
        """Commit an append."""
        rows.writeTo(self._name(table)).append()

    @contextmanager
    def reading(self, tables: Sequence[TpchTable]) -> Iterator[dict[str, DataFrame]]:
        """Load the newest snapshot."""
        yield {table.name: self._spark.table(self._name(table)) for table in tables}

    def change(self, table: TpchTable, statement: BenchStatement) -> None:
        """Run it as SQL: it copies the files that have such rows, the default."""
        self._spark.sql(_text(self._name(table), statement))

    def merge(self, table: TpchTable, rows: DataFrame, statement: BenchMerge) -> None:
        """Run it as SQL."""
        _merge(self._spark, self._name(table), rows, statement)

    @staticmethod
    def _name(table: TpchTable) -> str:
        return f"{ICEBERG}.bench.{table.name}"


class Tidelock:
    """Tables of a cluster on this machine: rows are written with `tl.write`, and read with `tl.read`."""

    def __init__(self, spark: SparkSession, db: Database) -> None:
        self._spark, self._db = spark, db
        self._last: Transaction | None = None
        self._replicas = count = len(db.status()["replicas"])
        self.name = f"Tidelock, {count} replica{'s' if count > 1 else ''}"
        self.note = (
            f"durable on {min(count, 2)} of {count} copies and visible at home; each copy is forced to disk"
        )

    def create(self, table: TpchTable, like: DataFrame) -> None:
        """Create it without compaction, which would work beside what is measured."""
        del like  # its columns are in the table's schema
        self._db.create_table(
            table.name,
            table.schema,
            partition_by=table.partition_by,
            sort_by=table.sort_by,
            properties={"compaction": "off"},
        )

    def append(self, table: TpchTable, rows: DataFrame) -> None:
        """Write and commit in a transaction."""
        with self._db.begin() as tx:
            tl.write(rows, tx, table.name)
            tx.commit()
        self._last = tx

    def request(self, table: TpchTable, rows: pa.Table) -> None:
        """Commit rows of this process in one request, without Spark."""
        self._db.write({table.name: rows})

    def everywhere(self) -> bool:
        """Wait until all replicas have the last transaction."""
        assert self._last is not None, "a transaction was committed before"
        self._last.commit(wait="all")
        return self._replicas > 1

    @contextmanager
    def reading(self, tables: Sequence[TpchTable]) -> Iterator[dict[str, DataFrame]]:
        """Attach a snapshot at the home."""
        names = [table.name for table in tables]
        with tl.attach(self._spark, self._db, tables=names, replica="r1") as snap:
            yield {name: tl.read(self._spark, snap, name) for name in names}

    def files(self, table: TpchTable) -> list[Path]:
        """None: a commit has forced them."""
        del table
        return []

    def change(self, table: TpchTable, statement: BenchStatement) -> None:
        """Let the agent run it, without Spark."""
        with self._db.begin() as tx:
            if statement.update is None:
                tx.delete(table.name, statement.where)
            else:
                tx.update(table.name, statement.update, statement.where)
            tx.commit()
        self._last = tx

    def merge(self, table: TpchTable, rows: DataFrame, statement: BenchMerge) -> None:
        """Let Spark do it."""
        values = {column: f"source.{column}" for column in statement.update}
        with self._db.begin() as tx:
            tl.merge(rows, tx, table.name, on=statement.on, when_matched_update=values)
            tx.commit()
        self._last = tx


def _columns(like: DataFrame) -> str:
    """Return the columns of a table that is to be made, as Spark's SQL."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in like.schema)


def _parts(table: TpchTable) -> str:
    """Return the partitions of a table that is to be made, as Spark's SQL."""
    return f" partitioned by ({', '.join(table.partition_by)})" if table.partition_by else ""


def _text(table: str, statement: BenchStatement) -> str:
    """Return a statement as Spark's SQL."""
    if statement.update is None:
        return f"delete from {table} where {statement.where}"
    values = ", ".join(f"{column} = {value}" for column, value in statement.update.items())
    return f"update {table} set {values} where {statement.where}"


def _merge(spark: SparkSession, table: str, rows: DataFrame, statement: BenchMerge) -> None:
    """Run a merge as Spark's SQL."""
    rows.createOrReplaceTempView("merged")
    on = " and ".join(f"target.{column} = source.{column}" for column in statement.on)
    values = ", ".join(f"target.{column} = source.{column}" for column in statement.update)
    spark.sql(
        f"merge into {table} as target using merged as source on {on} "
        f"when matched then update set {values} when not matched then insert *"
    )
