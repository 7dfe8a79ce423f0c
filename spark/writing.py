"""DataFrames into tables, inside a transaction, by Spark's own Parquet writer with the right settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
    # A job whose folder stays looks as if it had not ended.
    "mapreduce.fileoutputcommitter.cleanup.skipped": "false",
    "parquet.summary.metadata.level": "NONE",
}
#: How long the home of a transaction whose job has failed is given to say that it is there, in seconds.
_HOME_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Way:
    """How Spark is told of a mode.

    Attributes:
        save_mode: Of the writer.
        options: Of the writer, besides those of every mode.
    """

    save_mode: str
    options: Mapping[str, str]


def _way(save_mode: str, *, partitions: str, mark: str, read_timeout: str) -> Way:
    options = {
        "partitionOverwriteMode": partitions,
        "mapreduce.fileoutputcommitter.marksuccessfuljobs": mark,
        # A session may have a short one, for reads. Hadoop keeps that of the first use of an address.
        "dfs.webhdfs.socket.read-timeout": read_timeout,
    }
    return Way(save_mode, options)


#: The mark would seal a job in its last request, by whose answer Spark judges the job; were it late or lost,
#: Spark would call a job failed whose rows are in. Without it `tx.seal` alone seals, and knows what that is
#: worth. A job that replaces partitions needs the mark, else it cannot be told from one that was aborted: it
#: is sealed in its last request, which may take long.
WAYS: Final[Mapping[str, Way]] = {
    "append": _way("append", partitions="static", mark="false", read_timeout="60s"),
    "overwrite": _way("overwrite", partitions="static", mark="false", read_timeout="60s"),
    "overwrite_partitions": _way("overwrite", partitions="dynamic", mark="true", read_timeout="30m"),
}


def write(df: DataFrame, tx: Transaction, table: str, mode: Mode = "append") -> None:
    """Write a DataFrame into a table as a part of a transaction; the rows are visible when that commits.

    Executors send their files to the replicas in turn. Nothing of a task or a job that fails gets in; behind
    a job that has failed the transaction can only be rolled back, as behind any statement.
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
    way = WAYS.get(mode)
    if way is None:
        raise BadRequestError(f"mode={mode!r} is not offered; use one of {', '.join(WAYS)}")
    definition = tx.definition(table)
    partition_by = definition["partition_by"]
    if mode == "overwrite_partitions" and not partition_by:
        raise BadRequestError(
            f"table {table} has no partitions; replace all of it with mode='overwrite'", table=table
        )
    names = [column["name"] for column in definition["columns"]]
    _check_names(df, names, table)
    spark = df.sparkSession
    redact_tokens(spark)
    writer = df.select(*names).write.mode(way.save_mode).options(**OPTIONS, **way.options)
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    path = tx.path(table)
    with _settings(spark), _judged(tx):
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
def _judged(tx: Transaction) -> Iterator[None]:
    """A job that has failed leaves rollback only: whether its last request was carried out nobody knows.

    Where it fails because its transaction is gone, that is raised, not what its tasks have met.
    """
    try:
        yield
    except BaseException as error:
        tx.fail(error)
        if isinstance(error, Exception):
            _require_home(tx, error)
        raise


def _require_home(tx: Transaction, error: Exception) -> None:
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
