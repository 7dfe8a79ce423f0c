"""Changes of rows at Spark's scale: merge, update and delete inside a transaction.

Spark reads the table at the snapshot of the transaction, and counts the rows that are to change by their
files. The home of the transaction locks the parts of these files, so of two transactions that would change a
part one is told before it has written anything. Then Spark reads exactly these parts, and its Parquet writer
writes what becomes of their rows. The home accepts these files only if no row was lost or doubled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Final

from pyspark.errors import PySparkTypeError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it
from pyspark.sql.types import DateType, DecimalType, IntegralType, StringType

from tidelock.client import Transaction
from tidelock.column_names import OWN, by_same, same
from tidelock.errors import BadRequestError, CorruptError, SchemaMismatchError
from tidelock.spark.target import FILE, TargetTable
from tidelock.spark.values import Values, default_of, expression, fitted, own
from tidelock.spark.writing import WRITER_SETTINGS, failing_with_job, run_job
from tidelock.type_text import quoted
from tidelock.wire.statements import ChangeResult

#: Columns beside those of the table: whether a row gets new values, and whether it is deleted.
_CHANGES: Final = own("changes")
_DELETES: Final = own("deletes")
#: Types whose values are the same as text in every session.
_RANGED: Final = (IntegralType, DecimalType, DateType, StringType)


def delete(spark: SparkSession, tx: Transaction, table: str, where: str | Column) -> ChangeResult:
    """Delete the rows of a table for which a condition is true, as part of a transaction.

    Args:
        spark: A session of any kind.
        tx: An open transaction, which has not changed the table.
        table: `name` or `namespace.name`.
        where: A condition of Spark over the columns of the table. Rows for which it is null stay.

    Raises as `merge`.
    """
    target = TargetTable(spark, tx, table)
    condition = expression(where)
    counts = _count(target.scan().alias(target.alias).where(condition), F.lit(True))
    return _Change(tx, target, counts).write(
        lambda rows: rows.alias(target.alias).where(~F.coalesce(condition, F.lit(False)))
    )


def update(
    spark: SparkSession, tx: Transaction, table: str, values: Values, where: str | Column | None = None
) -> ChangeResult:
    """Give columns new values in the rows for which a condition is true, as part of a transaction.

    Args:
        spark: A session of any kind.
        tx: An open transaction, which has not changed the table.
        table: `name` or `namespace.name`.
        values: New values by column: SQL of Spark over the old row as text (`{"n": "n + 1"}`), an expression
            of Spark, or a value that is no text.
        where: As in `delete`; None: all rows.

    Raises as `merge`.
    """
    target = TargetTable(spark, tx, table)
    _require_columns(target, values)
    _require_made(target, values, "values")
    condition = F.lit(True) if where is None else F.coalesce(expression(where), F.lit(False))

    def changed(rows: DataFrame) -> DataFrame:
        return _with_values(target, rows.alias(target.alias), condition, values)

    scan = target.scan()
    _require_analyzed(changed(scan))
    counts = _count(scan.alias(target.alias).where(condition), F.lit(False))
    return _Change(tx, target, counts).write(changed)


def merge(
    df: DataFrame,
    tx: Transaction,
    table: str,
    *,
    on: str | Sequence[str],
    when_matched_update: Values | bool | None = None,
    when_matched_delete: str | Column | None = None,
    when_not_matched_insert: Values | bool | None = True,
) -> ChangeResult:
    """Merge a DataFrame into a table by key, as part of a transaction.

    In expressions the rows of the DataFrame are `source`, and those of the table `target`. The DataFrame is
    kept in memory and on the executors' disks while the merge runs, since it is read several times.

    Args:
        df: Has at least the columns of `on`; its columns that are named as those of the table get their
            types.
        tx: An open transaction, which has not changed the table.
        table: `name` or `namespace.name`.
        on: Columns of the key. A key with a null equals no other.
        when_matched_update: New values of rows of the table whose key is in the DataFrame, as in `update`;
            True: the values of all of its columns but the key.
        when_matched_delete: Such rows are deleted instead where this condition is true.
        when_not_matched_insert: Values of new rows for rows whose key is not in the table, over `source`
            (columns left out get their default, or null); True: all columns of the table. None: these rows
            are left out.

    Returns:
        The numbers of changed rows. `parts_removed` and `parts_added` count the parts that were replaced, and
        those that take their place.

    Raises:
        BadRequestError: There is nothing to do; `on` or a value names no column; or a row of the table
            matches several rows of the DataFrame (`key` in its details).
        SchemaMismatchError: The DataFrame lacks columns of new rows, or has a nested type other than that of
            the table's column.
        SerializationConflictError: Another transaction removes a part with rows to change, or has done so
            since this one's snapshot (`part`, `holder` in its details).
        UnsupportedInTransactionError: The transaction has changed the table already, or is read-committed.
        DuplicateKeyError: New rows have a key twice, in a table with a unique key.
        CorruptError: The files that were written do not have all rows: the DataFrame, or an expression, gives
            other rows each time it is read.
        UnknownTableError, TableModeError, UnavailableError: As in `Transaction.insert`.
        Exception: The error of Spark when a job fails. After an error that comes once parts are locked, the
            transaction accepts rollback() only.
    """
    target = TargetTable(df.sparkSession, tx, table)
    merging = _Merge(target, df, [on] if isinstance(on, str) else list(on))
    update_values = merging.updates(when_matched_update)
    insert_values = merging.inserts(when_not_matched_insert)
    if not update_values and when_matched_delete is None and insert_values is None:
        raise BadRequestError("a merge needs what to do with rows that match, or that do not match")
    deletes = F.lit(False) if when_matched_delete is None else expression(when_matched_delete)
    deletes = F.coalesce(deletes, F.lit(False))

    def merged(rows: DataFrame) -> DataFrame:
        return merging.merged(rows, source, update_values, deletes)

    with _kept(merging.source) as source, _kept(merging.hits(source, deletes)) as hits:
        _require_analyzed(merged(target.scan()))
        merging.require_once(source, hits, matching=bool(update_values) or when_matched_delete is not None)
        counts = _count(hits, F.col(quoted(_DELETES)))
        if not update_values:
            counts = {file: _Counted(one.deleted, one.deleted) for file, one in counts.items() if one.deleted}
        new = None if insert_values is None else merging.missed(source, hits)
        inserted = 0 if new is None else new.count()
        return _Change(tx, target, counts, inserted).write(
            merged, None if not inserted or new is None else merging.new_rows(new, insert_values or {})
        )


@dataclass(frozen=True, slots=True)
class _Counted:
    """Rows of one file that are to change, and those of them that are to be deleted."""

    changed: int
    deleted: int


def _count(changed: DataFrame, deletes: Column) -> dict[str, _Counted]:
    """Count the rows that are to change by their files."""
    counts = changed.groupBy(quoted(FILE)).agg(
        F.count(F.lit(1)).alias("changed"), F.count(F.when(deletes, 1)).alias("deleted")
    )
    return {row[0]: _Counted(row[1], row[2]) for row in counts.collect()}


@dataclass(frozen=True, slots=True)
class _Change:
    """A change whose rows are counted.

    Attributes:
        tx: The transaction.
        target: The table.
        counts: The rows to change, by file.
        inserted: The number of rows to insert.
    """

    tx: Transaction
    target: TargetTable
    counts: Mapping[str, _Counted]
    inserted: int = 0

    def write(
        self, remaining: Callable[[DataFrame], DataFrame], new: DataFrame | None = None
    ) -> ChangeResult:
        """Lock the parts with rows to change, and write what becomes of their rows.

        Args:
            remaining: Returns the rows to write for all rows of these parts, perhaps with `_CHANGES`.
            new: Rows to write besides, or None.
        """
        deleted = sum(one.deleted for one in self.counts.values())
        updated = sum(one.changed - one.deleted for one in self.counts.values())
        name = self.target.name
        taken = self.tx.replace_files(name, sorted(self.counts))
        with failing_with_job(self.tx):
            frames = [] if new is None else [new]
            if taken.rows > deleted:
                left = remaining(self.target.rows_of(taken.parts))
                self._require_counted(left, updated)
                frames.append(left)
            if frames:
                columns = [quoted(one) for one in self.target.schema.names]
                rows = reduce(DataFrame.union, (frame.select(*columns) for frame in frames))
                run_job(self._gathered(rows), self.tx, self.target.definition, WRITER_SETTINGS["append"])
            return self.tx.seal_change(
                name, rows_deleted=deleted, rows_updated=updated, rows_inserted=self.inserted
            )

    def _require_counted(self, left: DataFrame, updated: int) -> None:
        """Require that the rows to change are still as many as when they were counted.

        The home counts rows, and cannot count changed ones.
        """
        if _CHANGES not in left.columns:
            return
        found = left.where(F.col(quoted(_CHANGES))).count()
        if found != updated:
            raise CorruptError(
                f"{updated} rows of table {self.target.name} were to be updated, and {found} are: a "
                "condition, or the source, gives other rows each time it is read. Write the source to a "
                "table first, and give times as constants",
                table=self.target.name,
                expected=updated,
                found=found,
            )

    def _gathered(self, rows: DataFrame) -> DataFrame:
        """Return rows so distributed that a partition of the table gets few files."""
        partition_by = self.target.definition["partition_by"]
        columns = [F.col(quoted(name)) for name in partition_by]
        if not columns:
            return rows
        try:
            return rows.hint("rebalance", *columns)
        except PySparkTypeError:  # Spark 3.5 takes no columns here; a large partition is one task there
            return rows.repartition(*columns)


class _Merge:
    """A merge: the source in the types of the table, and what meets what.

    Args:
        target: The table.
        df: The source.
        on: Columns of the key.

    Attributes:
        source: The rows of `df`.
    """

    def __init__(self, target: TargetTable, df: DataFrame, on: Sequence[str]) -> None:
        known = target.fields
        by_table = by_same(known)
        df = df.select(*(F.col(quoted(one)).alias(by_table.get(same(one), one)) for one in df.columns))
        names = df.columns
        on = [by_table.get(same(name), name) for name in on]
        if len({*map(same, names)}) < len(names) or any(same(name).startswith(OWN) for name in names):
            raise BadRequestError(
                f"the rows have a column twice (ignoring case), or one that begins with {OWN}; rename it"
            )
        for name in on:
            if name not in names or name not in known:
                raise BadRequestError(
                    f"on={name!r} is not a column of both: table {target.name} has {', '.join(known)}; the "
                    f"rows have {', '.join(names)}",
                    column=name,
                )
        if not on:
            raise BadRequestError("a merge needs `on`, the columns of the key")
        self._target, self._on = target, on
        common = [name for name in names if name in known]
        self.source = fitted(df, common, [known[name] for name in common], target.name)

    def updates(self, given: Values | bool | None) -> Values:
        """Return the new values of rows that match."""
        if given is True:
            names = [one for one in self.source.columns if one in self._target.fields and one not in self._on]
            values: Values = {name: _of_source(name) for name in names}
        elif not given:
            if given is not None and given is not False:
                raise _names_no_column("when_matched_update")
            return {}
        else:
            values = given
        _require_columns(self._target, values)
        _require_made(self._target, values, "when_matched_update")
        return values

    def inserts(self, given: Values | bool | None) -> Values | None:
        """Return the values of new rows; None: there are none."""
        if given is None or given is False:
            return None
        if not given:
            raise _names_no_column("when_not_matched_insert")
        columns = self._target.definition["columns"]
        if given is True:
            missing = [
                one["name"]
                for one in columns
                if one["name"] not in self.source.columns
                and one.get("default") is None
                and one.get("generated") is None  # those have a refusal of their own
            ]
            if missing:
                raise SchemaMismatchError(
                    "rows that match nothing are inserted, but lack columns of table "
                    f"{self._target.name}: {', '.join(missing)}; send them, or name the columns in "
                    "when_not_matched_insert",
                    table=self._target.name,
                    missing=missing,
                )
            given = {name: _of_source(name) for name in self._target.fields if name in self.source.columns}
        _require_columns(self._target, given)
        _require_made(self._target, given, "when_not_matched_insert")
        return given

    def hits(self, source: DataFrame, deletes: Column) -> DataFrame:
        """Return for each row of the table that matches its file, whether it is deleted, and its key."""
        scan = self._within(source, self._target.scan())
        met = scan.alias("target").join(source.alias("source"), self._equal("target"), "inner")
        keys = [_of_source(name).alias(name) for name in self._on]
        return met.select(F.col(f"target.{quoted(FILE)}").alias(FILE), deletes.alias(_DELETES), *keys)

    def _within(self, source: DataFrame, rows: DataFrame) -> DataFrame:
        """Leave out rows of the table that no key of the source can meet, by which Spark leaves out files."""
        known = self._target.fields
        ranged = [name for name in self._on if isinstance(known[name].dataType, _RANGED)]
        if not ranged:
            return rows
        bounds = source.agg(
            *(F.min(quoted(name)).cast("string") for name in ranged),
            *(F.max(quoted(name)).cast("string") for name in ranged),
        ).first()
        assert bounds is not None, "an aggregate has one row"
        for name, low, high in zip(ranged, bounds, bounds[len(ranged) :], strict=False):
            kind = known[name].dataType
            if low is None:
                return rows.where(F.lit(False))  # only nulls, or no rows at all
            rows = rows.where(F.col(quoted(name)).between(F.lit(low).cast(kind), F.lit(high).cast(kind)))
        return rows

    def require_once(self, source: DataFrame, hits: DataFrame, *, matching: bool) -> None:
        """Raise BadRequestError if several rows of the source have a key for which one row counts."""
        unique = bool(self._target.definition["properties"].get("unique_key"))
        if not (unique or matching):
            return
        names = [quoted(name) for name in self._on]
        given = reduce(and_, (F.col(name).isNotNull() for name in names))
        twice = source.where(given).groupBy(*names).count().where("count > 1").select(*names)
        if not unique:
            twice = twice.alias("source").join(hits.alias("hits"), self._equal("hits"), "left_semi")
        if found := twice.limit(1).collect():
            key = {name: str(value) for name, value in zip(self._on, found[0], strict=True)}
            shown = ", ".join(f"{name}={value}" for name, value in key.items())
            raise BadRequestError(
                f"several of the rows have the key {shown} and table {self._target.name} takes one row for "
                "each key; send only that one",
                table=self._target.name,
                key=key,
            )

    def missed(self, source: DataFrame, hits: DataFrame) -> DataFrame:
        """Return the rows of the source that match no row of the table."""
        keys = hits.select(*map(quoted, self._on)).distinct().alias("hits")
        return source.alias("source").join(keys, self._equal("hits"), "left_anti")

    def merged(self, rows: DataFrame, source: DataFrame, values: Values, deletes: Column) -> DataFrame:
        """Return what becomes of rows of the table."""
        other = source.withColumn(_CHANGES, F.lit(True)).alias("source")
        met = rows.alias("target").join(other, self._equal("target"), "left")
        matches = F.col(f"source.{quoted(_CHANGES)}").isNotNull()
        stays = met.where(~(matches & deletes))
        return _with_values(self._target, stays, matches if values else F.lit(False), values, of="target.")

    def new_rows(self, missed: DataFrame, values: Values) -> DataFrame:
        """Return new rows for rows of the source."""
        fields = self._target.fields
        rows = missed.alias("source").select(
            *(expression(value).alias(name) for name, value in values.items()),
            *(
                default_of(one).alias(one["name"])
                for one in self._target.definition["columns"]
                if one["name"] not in values
            ),
        )
        return fitted(rows, [*values], [fields[name] for name in values], self._target.name)

    def _equal(self, other: str) -> Column:
        return reduce(and_, (F.col(f"{other}.{quoted(name)}") == _of_source(name) for name in self._on))


def _with_values(
    target: TargetTable, rows: DataFrame, changes: Column, values: Values, *, of: str = ""
) -> DataFrame:
    """Return rows of a table, with new values where they change.

    Args:
        target: The table.
        rows: The rows.
        changes: Whether a row changes.
        values: The new values, by column.
        of: Before the names of the columns of the table in `rows`: "target." or "".
    """
    fields, new = target.fields, {name: own(f"new:{name}") for name in values}
    made = rows.select(
        *(F.col(of + quoted(name)).alias(name) for name in fields),
        changes.alias(_CHANGES),
        *(F.when(changes, expression(value)).alias(new[name]) for name, value in values.items()),
    )
    made = fitted(made, [*new.values()], [fields[name] for name in new], target.name)
    return made.select(
        quoted(_CHANGES),
        *(
            F.when(F.col(quoted(_CHANGES)), F.col(quoted(new[name])))
            .otherwise(F.col(quoted(name)))
            .alias(name)
            if name in new
            else F.col(quoted(name))
            for name in fields
        ),
    )


def _require_analyzed(rows: DataFrame) -> None:
    """Let Spark find what is wrong with an expression before anything is locked."""
    _ = rows.schema


def _names_no_column(argument: str) -> BadRequestError:
    return BadRequestError(f"{argument} names no column; give at least one, or leave it out")


def _of_source(name: str) -> Column:
    return F.col(f"source.{quoted(name)}")


def _require_columns(target: TargetTable, values: Values) -> None:
    if unknown := [name for name in values if name not in target.fields]:
        raise BadRequestError(
            f"{', '.join(unknown)} is no column of table {target.name}, which has {', '.join(target.fields)}",
            table=target.name,
            column=unknown[0],
        )


def _require_made(target: TargetTable, values: Values, argument: str) -> None:
    """Raise BadRequestError for generated columns without a value: their SQL is not that of Spark."""
    made = [one["name"] for one in target.definition["columns"] if one.get("generated") is not None]
    if missing := [name for name in made if name not in values]:
        raise BadRequestError(
            f"{', '.join(missing)} of table {target.name} is generated by SQL that Spark does not run; give "
            f"its new value in {argument}, or use tx.merge or tx.update",
            table=target.name,
            column=missing[0],
        )


@contextmanager
def _kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Keep rows on the executors while the block reads them several times."""
    kept = rows.persist()
    try:
        yield kept
    finally:
        kept.unpersist()
