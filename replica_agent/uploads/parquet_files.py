"""Checks of Parquet files from other writers: whether one can be a part of a table, by its footer.

Only the footer is read, a required column where the footer does not count its nulls, and float columns of a
file that claims to have right hints about them. An accepted file means the same to every reader of the table
(rule column-types): it has the columns of the table's files by name, with exactly their types.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from tidelock.casts import as_stored, equal_but_nulls
from tidelock.column_types import is_nested
from tidelock.errors import CorruptError, SchemaMismatchError
from tidelock.float_mark import FLOATS_MARK
from tidelock.parquet_leaves import first_leaves, has_floats, leaf_paths
from tidelock.replica_agent.tables.partitions import values_of
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.tables.statistics import Statistics, statistics_of
from tidelock.table_columns import Column

#: The codecs that Spark, Arrow and DuckDB can all decompress.
_CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4", "LZ4_RAW"})
#: Spark's mark on files whose dates before 1582 are days of the Julian calendar.
_LEGACY_DATES = b"org.apache.spark.legacyDateTime"
#: Spark's version. Before 3.0 only that calendar existed, without a mark; Spark reads such files accordingly.
_SPARK_VERSION = b"org.apache.spark.version"
_GREGORIAN_SINCE = 3
_FLOATS = frozenset({"FLOAT", "DOUBLE"})
#: The numbers of the columns that a file has for each of its fields; found once, as files may have thousands.
Places = Mapping[str, range]
_MICROSECONDS = "set spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS (tl.write does)"


def partition_path(place: tuple[str, ...], schema: TableSchema) -> str:
    """Return the partition that folders name; SchemaMismatchError if they name no partition of the table."""
    path = "/".join(place)
    try:
        values = values_of(path, schema)
    except CorruptError as error:
        folders = "/".join(f"{column.name}=<{column.type}>" for column in schema.partition_columns)
        columns = ", ".join(f'"{name}"' for name in schema.partition_by)
        raise SchemaMismatchError(
            f"files for table {schema.name} were written into {path or 'no partition'!r}, and its partitions "
            f"are {folders or 'none'!r}: write with partitionBy({columns}), each column of its type",
            table=schema.name,
            columns=list(schema.partition_by),
        ) from error
    for column in schema.partition_columns:
        if not column.nullable and values[column.name] is None:
            _refuse(
                schema, column.name, f"is required, and files in {path!r} are those of a null: give a value"
            )
    return path


def examine(source: Path | pa.BufferReader, schema: TableSchema) -> tuple[int, Statistics]:
    """Return the number of rows of a file, and its statistics, if it can be a part of a table.

    Raises:
        SchemaMismatchError: It cannot be a part; the message names the column, and what to change.
    """
    try:
        with pq.ParquetFile(source) as file:
            places = _places(file)
            _check_file(file, schema)
            _check_columns(file, schema, places)
            _check_required(file, schema, places)
            _check_bounds(file, schema, places)
            _check_floats(file, schema, places)
            return file.metadata.num_rows, statistics_of(file.metadata, schema, file.schema_arrow)
    except (pa.ArrowException, OSError) as error:
        raise SchemaMismatchError(
            f"a file for table {schema.name} cannot be read as Parquet: {error}; write it again",
            table=schema.name,
        ) from error


def _places(file: pq.ParquetFile) -> Places:
    """Return the numbers of the columns that a file has for each of its fields."""
    first = first_leaves(file.schema_arrow)
    borders = itertools.pairwise([*first.values(), len(file.schema)])
    return {name: range(*ends) for name, ends in zip(first, borders, strict=True)}


def _check_file(file: pq.ParquetFile, schema: TableSchema) -> None:
    keys = file.metadata.metadata or {}
    if _LEGACY_DATES in keys:
        raise SchemaMismatchError(
            f"files for table {schema.name} hold dates of the Julian calendar: set "
            "spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED (tl.write does)",
            table=schema.name,
        )
    version = keys.get(_SPARK_VERSION, b"").decode(errors="replace")
    major = version.partition(".")[0]
    dated = any(types.is_date(leaf) or types.is_timestamp(leaf) for _, leaf in leaf_paths(schema.arrow))
    if dated and major.isdecimal() and int(major) < _GREGORIAN_SINCE:
        raise SchemaMismatchError(
            f"files for table {schema.name} were written by Spark {version}, whose dates before 1582 are "
            "days of the Julian calendar: write with Spark 3.5 or newer",
            table=schema.name,
        )
    for group in _groups(file.metadata):
        for column in (group.column(number) for number in range(group.num_columns)):
            if column.compression not in _CODECS:
                # Arrow has no name for the lz4 of Hadoop, which Spark calls lz4.
                name = {"UNKNOWN": "lz4 as Hadoop frames it"}.get(column.compression, column.compression)
                raise SchemaMismatchError(
                    f"column {column.path_in_schema} for table {schema.name} is compressed by {name}, which "
                    "some readers cannot read: use snappy, zstd or lz4_raw",
                    table=schema.name,
                    column=column.path_in_schema,
                )


def _check_columns(file: pq.ParquetFile, schema: TableSchema, places: Places) -> None:
    found = {field.name: field for field in file.schema.to_arrow_schema()}
    expected = {column.name: column for column in schema.columns}
    stored = [column for column in schema.columns if column.name not in schema.partition_by]
    for name in found:
        if name in schema.partition_by:
            _refuse(
                schema, name, "is a column of its partitions, and is stored in the files: use partitionBy"
            )
        if name not in expected:
            _refuse(schema, name, "is not in the table: leave it out, or give it the name of a column")
    if len(file.schema_arrow.names) != len(set(file.schema_arrow.names)):
        _refuse(schema, ", ".join(file.schema_arrow.names), "has a name that comes more than once")
    for column in stored:
        if column.name not in found:
            _refuse(schema, column.name, f"({column.type}) is missing")
        leaves = [file.schema.column(number) for number in places[column.name]]
        _check_type(schema, column, as_stored(found[column.name].type), leaves)


def _check_type(schema: TableSchema, column: Column, found: pa.DataType, stored: Sequence[Any]) -> None:
    if any(leaf.physical_type == "INT96" for leaf in stored):
        _refuse(
            schema, column.name, f"is stored as int96, and the table's type is {column.type}: {_MICROSECONDS}"
        )
    if equal_but_nulls(found, column.arrow.type):
        if [leaf.path for leaf in stored] != [path for path, _ in leaf_paths([column.arrow])]:
            _refuse(
                schema,
                column.name,
                "has lists of an older layout, of two levels: insert the rows of the file (tx.insert), or in "
                "Spark set spark.sql.parquet.writeLegacyFormat=false (tl.write does)",
            )
        return
    hint = f": {_MICROSECONDS}" if pa.types.is_timestamp(found) and column.type == "timestamp" else ""
    _refuse(
        schema, column.name, f"is {found}, expected {column.type} ({column.arrow.type}){hint or ': cast it'}"
    )


def _check_required(file: pq.ParquetFile, schema: TableSchema, places: Places) -> None:
    """Check required columns for nulls: Spark declares every column of a file as nullable."""
    for column in schema.columns:
        if column.nullable or column.name in schema.partition_by:
            continue
        known = [group.column(places[column.name][0]).statistics for group in _groups(file.metadata)]
        if not is_nested(column.type) and all(item is not None and item.has_null_count for item in known):
            nulls = sum(item.null_count for item in known)
        else:
            nulls = sum(batch.column(0).null_count for batch in file.iter_batches(columns=[column.name]))
        if nulls:
            _refuse(
                schema, column.name, f"is required, and {nulls} rows of a file hold a null: give them values"
            )


def _check_bounds(file: pq.ParquetFile, schema: TableSchema, places: Places) -> None:
    """Check the smallest and largest text of each column, which are used exactly as the footer has them."""
    for column in schema.columns:
        if column.type == "string" and column.name not in schema.partition_by:
            known = [group.column(places[column.name][0]).statistics for group in _groups(file.metadata)]
            try:
                _ = [(item.min, item.max) for item in known if item is not None and item.has_min_max]
            except UnicodeDecodeError:
                _refuse(schema, column.name, "holds texts that are not UTF-8: make it binary, or decode them")


def _check_floats(file: pq.ParquetFile, schema: TableSchema, places: Places) -> None:
    """Check the claim of a marked file that its hints about floats are right (`part_layout.FloatColumns`).

    Readers of a file without the mark are not shown them. A program that copies the rows of a part with all
    metadata copies the mark as well.
    """
    if FLOATS_MARK not in (file.metadata.metadata or {}):
        return
    for column in schema.columns:
        if column.name in schema.partition_by or not has_floats(column.arrow.type):
            continue
        if is_nested(column.type):
            _check_inner_floats(file, schema, column, places)
            continue
        index = places[column.name][0]
        for number, group in enumerate(_groups(file.metadata)):
            chunk = group.column(index)
            ranged = chunk.statistics is not None and chunk.statistics.has_min_max
            if not ranged and not chunk.has_dictionary_page:
                continue
            values = file.read_row_group(number, columns=[column.name]).column(0)
            hides_nan = ranged and pc.any(pc.is_nan(values)).as_py()
            if hides_nan or (chunk.has_dictionary_page and pc.any(pc.equal(values, 0)).as_py()):
                _refuse(
                    schema,
                    column.name,
                    "has a range that leaves a NaN out, or a dictionary with a zero, in a file with the mark "
                    f"{FLOATS_MARK.decode()} of one that has neither: write no such key into its metadata",
                )


def _check_inner_floats(file: pq.ParquetFile, schema: TableSchema, column: Column, places: Places) -> None:
    """Check that floats inside of a column of a marked file have neither ranges nor dictionaries."""
    inner = [number for number in places[column.name] if file.schema.column(number).physical_type in _FLOATS]
    for chunk in (group.column(number) for group in _groups(file.metadata) for number in inner):
        if chunk.has_dictionary_page or (chunk.statistics is not None and chunk.statistics.has_min_max):
            _refuse(
                schema,
                column.name,
                "has ranges or dictionaries of the floats inside of it, in a file with the mark "
                f"{FLOATS_MARK.decode()} of one that has neither: write no such key into its metadata",
            )


def _groups(metadata: Any) -> Iterable[Any]:
    return (metadata.row_group(number) for number in range(metadata.num_row_groups))


def _refuse(schema: TableSchema, column: str, problem: str) -> NoReturn:
    raise SchemaMismatchError(
        f"column {column} for table {schema.name} {problem}; nothing of the job was kept",
        table=schema.name,
        column=column,
    )
