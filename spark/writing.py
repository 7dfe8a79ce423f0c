"""DataFrames into tables, inside a transaction, by Spark's own Parquet writer with the right settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal

from pyspark.sql import DataFrame, SparkSession

from tidelock.client import Transaction
from tidelock.errors import BadRequestError, SchemaMismatchError, TidelockError, UnavailableError
from tidelock.spark.redaction import redact_tokens

Mode = Literal["append", "overwrite", "overwrite_partitions"]

#: For the time of the write; the Parquet writer takes these from the session alone.
SESSION: Final[Mapping[str, str]] = {
    # Spark's default is int96, which has no order and no unit that a table's type could name.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Parts hold proleptic Gregorian dates.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
#: Writer options.
OPTIONS: Final[Mapping[str, str]] = {
    # Version 2 puts the files of a task into place before its job has ended.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    # Without its mark a job that replaces partitions cannot be told from one that was aborted.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true",
    # A job whose folder stays looks as if it had not ended.
    "mapreduce.fileoutputcommitter.cleanup.skipped": "false",
    "parquet.summary.metadata.level": "NONE",
}
#: How long the home of a transaction whose job has failed is given to say that it is there, in seconds.
_HOME_TIMEOUT_S: Final = 10.0
_MODES: Final[Mapping[str, tuple[str, str]]] = {
    "append": ("append", "static"),
    "overwrite": ("overwrite", "static"),
    "overwrite_partitions": ("overwrite", "dynamic"),
}


def write(df: DataFrame, tx: Transaction, table: str, mode: Mode = "append") -> None:
    """Write a DataFrame into a table as a part of a transaction; the rows are visible when that commits.

    Executors write straight to the transaction's home. Nothing of a task or a job that fails gets in.
    Settings of the session that the Parquet writer needs are changed for the time of the write.

    Args:
        df: Has the columns of the table, in any order.
        tx: An open transaction.
        table: `name` or `namespace.name`.
        mode: "append"; "overwrite" to replace all rows of the table that the transaction sees;
            "overwrite_partitions" to replace those of the partitions that `df` has rows of.

    Raises:
        BadRequestError: There is no such mode, or the table has no partitions to be replaced.
        SchemaMismatchError: A column is missing, or is none of the table.
        UnknownTableError: There is no such table at the transaction's snapshot.
        TransactionClosedError: The transaction takes no statements.
        UnavailableError: Its home does not answer, or has died in the middle of the job. Begin again.
        Exception: What Spark raises when the job fails; what the agent refuses is in its text: a column that
            does not fit, rows that another transaction removes. Roll back then.
    """
    if mode not in _MODES:
        raise BadRequestError(f"mode={mode!r} is not offered; use one of {', '.join(_MODES)}")
    definition = tx.definition(table)
    partition_by = definition["partition_by"]
    if mode == "overwrite_partitions" and not partition_by:
        raise BadRequestError(
            f"table {table} has no partitions; replace all of it with mode='overwrite'", table=table
        )
    names = [column["name"] for column in definition["columns"]]
    _check_names(df, names, table)
    save_mode, partitions = _MODES[mode]
    spark = df.sparkSession
    redact_tokens(spark)
    writer = df.select(*names).write.mode(save_mode).options(**OPTIONS, partitionOverwriteMode=partitions)
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    path = tx.path(table)
    with _settings(spark), _home(tx):
        writer.parquet(path)
    tx.seal(table)


def _check_names(df: DataFrame, names: list[str], table: str) -> None:
    missing = [name for name in names if name not in df.columns]
    extra = [name for name in df.columns if name not in names]
    doubled = sorted({name for name in df.columns if df.columns.count(name) > 1})
    problems = [f"column {name} is missing" for name in missing]
    problems += [f"column {name} is not in the table" for name in extra]
    problems += [f"column {name} comes more than once" for name in doubled]
    if problems:
        raise SchemaMismatchError(
            f"the rows do not fit table {table}: {'; '.join(problems)}; select the table's columns",
            table=table,
            missing=missing,
            extra=extra,
            doubled=doubled,
        )


@contextmanager
def _home(tx: Transaction) -> Iterator[None]:
    """Where a job fails because its transaction is gone, that is raised, not what its tasks have met."""
    try:
        yield
    except Exception as error:
        try:
            tx.renew(_HOME_TIMEOUT_S)
        except UnavailableError as silent:
            raise UnavailableError(
                f"{tx.holder}, the home of transaction {tx.tid}, does not answer any more, so the job has "
                f"failed and nothing of it is committed; begin again ({silent.message})",
                tid=tx.tid,
                replica=tx.holder,
            ) from error
        except TidelockError as gone:
            raise gone from error
        raise


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in SESSION}
    try:
        for name, value in SESSION.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
