"""Writes of DataFrames to tables inside a transaction, by Spark's Parquet writer with the right settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import DataFrame, SparkSession

from tidelock.client import Transaction
from tidelock.errors import BadRequestError, SchemaMismatchError, TidelockError, UnavailableError
from tidelock.job_options import MARKED, OPTIONS, SESSION, UNMARKED
from tidelock.spark.schema import has_times
from tidelock.spark.sessions import allow_times, redact_tokens
from tidelock.spark.values import in_partitions, with_defaults
from tidelock.wire.rows import Fields

Mode = Literal["append", "overwrite", "overwrite_partitions"]

#: Time that the home of a transaction has to answer after a job of the transaction has failed, in seconds.
_HOME_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """The settings of Spark's writer for one mode.

    Attributes:
        save_mode: Save mode of the writer.
        options: Options of the writer, in addition to `OPTIONS`.
    """

    save_mode: str
    options: Mapping[str, str]


#: The settings of each mode. The mark is the file `_SUCCESS`, which a job writes in its last request. An
#: agent seals the job when it receives the mark, and Spark judges the job by the answer: if the answer were
#: late or lost, Spark would report a failed job although its rows are in the transaction. So the first two
#: modes write no mark, and `tx.seal` seals the job. A job that replaces partitions needs the mark, since
#: without it the agent could not distinguish it from an aborted job. The answer to its last request may take
#: long.
WRITER_SETTINGS: Final[Mapping[str, WriterSettings]] = {
    "append": WriterSettings("append", {"partitionOverwriteMode": "static", **UNMARKED}),
    "overwrite": WriterSettings("overwrite", {"partitionOverwriteMode": "static", **UNMARKED}),
    "overwrite_partitions": WriterSettings("overwrite", {"partitionOverwriteMode": "dynamic", **MARKED}),
}


def write(df: DataFrame, tx: Transaction, table: str, mode: Mode = "append") -> None:
    """Write a DataFrame to a table as part of a transaction; its commit makes the rows visible.

    Executors send their files to the replicas in turn. No row of a failed task or job gets in. After a failed
    job the transaction can only be rolled back, as after any failed statement. Settings of the session that
    the Parquet writer needs are changed during the write.

    Args:
        df: Has the columns of the table, in any order. Columns with a default may be missing. The values of
            generated columns are not made here: the rows bring them, and they are checked.
        tx: An open transaction.
        table: `name` or `namespace.name`.
        mode: "append"; "overwrite" to replace all rows of the table that the transaction sees;
            "overwrite_partitions" to replace all rows of the partitions that `df` has rows for.

    Raises:
        BadRequestError: The mode does not exist, or the table has no partitions to replace.
        SchemaMismatchError: A column is missing, or does not exist in the table.
        DuplicateKeyError: Two of the rows have the same key of a table with a unique key; or, unless the
            table replaces duplicates, a row of the table has it.
        SerializationConflictError: Another transaction adds such keys.
        UnknownTableError: The table does not exist at the transaction's snapshot.
        TransactionClosedError: The transaction accepts no statements.
        UnavailableError: Its home does not answer, or has died in the middle of the job. Begin again.
        Exception: The error of Spark when the job fails. Its text has the agent's refusal, if there is one: a
            column that does not fit, or rows that another transaction removes. Roll back then.
    """
    settings = WRITER_SETTINGS.get(mode)
    if settings is None:
        raise BadRequestError(f"mode={mode!r} is not offered; use one of {', '.join(WRITER_SETTINGS)}")
    definition = tx.definition(table)
    if mode == "overwrite_partitions" and not definition["partition_by"]:
        raise BadRequestError(
            f"table {table} has no partitions; replace all of it with mode='overwrite'", table=table
        )
    _check_names(df, definition)
    prepare(df.sparkSession, definition)
    run_job(with_defaults(df, definition), tx, definition, settings)
    tx.seal(table)


def run_job(rows: DataFrame, tx: Transaction, definition: Fields, settings: WriterSettings) -> None:
    """Write rows with all columns of a table into its folder in a transaction; the caller seals the job.

    The session is prepared. Raises as `write` if the job fails; the transaction can only be rolled back then.
    """
    writer = rows.select(*in_partitions(definition)).write.mode(settings.save_mode)
    writer = writer.options(**OPTIONS, **settings.options)
    if partition_by := definition["partition_by"]:
        writer = writer.partitionBy(*partition_by)
    path = tx.path(definition["name"])
    with _session_settings(rows.sparkSession), failing_with_job(tx):
        writer.parquet(path)


def prepare(spark: SparkSession, definition: Fields) -> None:
    """Make a session hide tokens, and take the types of a table."""
    redact_tokens(spark)
    if has_times(definition):
        allow_times(spark)


def _check_names(df: DataFrame, definition: Fields) -> None:
    table, names = definition["name"], [column["name"] for column in definition["columns"]]
    missing = [
        column["name"]
        for column in definition["columns"]
        if column["name"] not in df.columns and column.get("default") is None
    ]
    extra = [name for name in df.columns if name not in names]
    doubled = sorted({name for name in df.columns if df.columns.count(name) > 1})
    problems = [f"column {name} is missing" for name in missing]
    problems += [f"column {name} is not in the table" for name in extra]
    problems += [f"column {name} occurs more than once" for name in doubled]
    if problems:
        raise SchemaMismatchError(
            f"the rows do not fit table {table}: {'; '.join(problems)}; select the table's columns",
            table=table,
            missing=missing,
            extra=extra,
            doubled=doubled,
        )


@contextmanager
def failing_with_job(tx: Transaction) -> Iterator[None]:
    """Fail the transaction if the job in the block fails: the job's last request may have been executed.

    If the job has failed because its transaction has ended, raise the reason for that, not the job's error.
    """
    try:
        yield
    except BaseException as error:
        tx.fail(error)
        if isinstance(error, Exception):
            _require_home(tx, error)
        raise


def _require_home(tx: Transaction, error: Exception) -> None:
    """Raise the reason if the transaction cannot be renewed at its home."""
    try:
        tx.renew(_HOME_TIMEOUT_S)
    except UnavailableError as unanswered:
        raise UnavailableError(
            f"{tx.holder}, the home of transaction {tx.tid}, does not answer any more, so the job has "
            f"failed and no row of it is committed; begin again ({unanswered.message})",
            tid=tx.tid,
            replica=tx.holder,
        ) from error
    except TidelockError as ended:
        raise ended from error


@contextmanager
def _session_settings(spark: SparkSession) -> Iterator[None]:
    """Change the session's settings to `SESSION` for the duration of the block."""
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
