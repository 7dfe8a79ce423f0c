"""Partition values as folders, as Hive and Spark write and read them, and the split of rows by partition.

Pure. A path is ``col=value/col2=value2`` (docs/protocol.md#bytes). Each value has exactly one text, so
equal values are in the same folder, and every text is read back as the value. A value without such a text is
refused. Agents and clients share this module, since both write files of tables.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.errors import SchemaMismatchError, TooLargeError

#: A value of a partition column; None is null.
PartitionValue = bool | int | str | dt.date | decimal.Decimal | None

#: The text of null, in Hive and in Spark.
NULL_TEXT = "__HIVE_DEFAULT_PARTITION__"
#: Most bytes of one folder's name. Every file system accepts names of this length, so a snapshot can be
#: copied anywhere. This is no setting: an existing folder must be readable under all settings.
SEGMENT_BYTES_MAX = 255

#: Characters that are written as ``%XX``: the ones of Spark's ``escapePathName``, and NUL, which no path has.
ESCAPED = frozenset(chr(code) for code in (*range(0x20), 0x7F)) | frozenset("\"#%'*/:=?\\{[]^")
_ESCAPES = {ord(char): f"%{ord(char):02X}" for char in ESCAPED}
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")


def escape(text: str) -> str:
    """Return a column name or value in the form that a path has."""
    return text.translate(_ESCAPES)


def unescape(text: str) -> str:
    """Invert :func:`escape`; a ``%`` without two hexadecimal digits is kept."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)


def path_of(values: Mapping[str, PartitionValue]) -> str:
    """Return the path of a partition, ``""`` for no columns; ``values`` is in the order of ``partition_by``.

    Raises:
        SchemaMismatchError: A value cannot be a folder: the empty string (Spark reads it as null), or the
            text that means null.
        TooLargeError: A folder's name would be longer than :data:`SEGMENT_BYTES_MAX`.
    """
    return "/".join(segment(column, value) for column, value in values.items())


def texts_of(path: str) -> dict[str, str | None]:
    """Return the texts of the values of a partition's path by column, None for null."""
    folders = [folder.partition("=") for folder in path.split("/")] if path else []
    return {unescape(name): None if text == NULL_TEXT else unescape(text) for name, _, text in folders}


def split(batch: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split conformed rows by partition: (path, rows with the columns of the files), in order of appearance.

    Rows keep their order within a partition. Each group has separate memory, so that a caller that keeps a
    few rows does not keep the whole batch; but a batch of one partition is passed on without a copy.

    Raises:
        SchemaMismatchError, TooLargeError: As :func:`path_of`.
    """
    if not batch.num_rows:
        return
    if not partition_by:
        yield "", batch
        return
    rows = batch
    for name in partition_by:  # much cheaper than to select the others
        rows = rows.remove_column(rows.schema.get_field_index(name))
    if all(_is_constant(batch.column(name)) for name in partition_by):
        yield _path_at(batch, partition_by, 0), rows
        return
    codes = _group_codes([batch.column(name) for name in partition_by])
    counts = pc.value_counts(codes).field("counts").to_pylist()
    order = pc.sort_indices(codes)  # stable, so rows keep their order
    begin = 0
    for count in counts:
        indices = order.slice(begin, count)
        yield _path_at(batch, partition_by, indices[0].as_py()), rows.take(indices)
        begin += count


def _is_constant(column: pa.Array) -> bool:
    """Return whether all rows have the same value: most inserts are of one partition, and this is cheap."""
    return bool(column[1:].equals(column[:-1]))


def _group_codes(columns: list[pa.Array]) -> pa.Array:
    """Return the number of each row's group of equal rows; groups are numbered from 0 by first appearance."""
    codes = _codes(columns[0])
    for column in columns[1:]:
        # Both numbers are below the number of rows, so the combined one easily fits into 64 bits.
        codes = _codes(pc.add(pc.multiply(codes, len(column)), _codes(column)))
    return codes


def _codes(column: pa.Array) -> pa.Array:
    """Return the number of each row's value; values, null among them, are numbered by first appearance."""
    return column.dictionary_encode(null_encoding="encode").indices.cast(pa.int64())


def _path_at(batch: pa.RecordBatch, partition_by: Sequence[str], row: int) -> str:
    return path_of({name: _python(batch.column(name)[row], name) for name in partition_by})


def _python(value: pa.Scalar, column: str) -> PartitionValue:
    try:
        converted: PartitionValue = value.as_py()
    except (ValueError, OverflowError) as error:
        raise SchemaMismatchError(
            f"partition column {column} holds a date outside the years 1 to 9999, which "
            "has no text that every reader understands",
            column=column,
        ) from error
    return converted


def segment(column: str, value: PartitionValue) -> str:
    """Return the folder of one column's value; errors as :func:`path_of`."""
    text = NULL_TEXT if value is None else escape(text_of(value))
    if value in {"", NULL_TEXT}:
        raise SchemaMismatchError(
            f"partition column {column} holds {value!r}, which Spark reads as null; "
            "give null or another value",
            column=column,
            value=value,
        )
    segment = f"{escape(column)}={text}"
    length = len(segment.encode())
    if length > SEGMENT_BYTES_MAX:
        raise TooLargeError(
            f"the folder of partition column {column} would have a name of {length} bytes; the limit is "
            f"{SEGMENT_BYTES_MAX}: partition by something shorter",
            limit=SEGMENT_BYTES_MAX,
            found=length,
        )
    return segment


def text_of(value: bool | int | str | dt.date | decimal.Decimal) -> str:
    """Return the one text of a value."""
    match value:
        case bool():
            return "true" if value else "false"
        case dt.date():
            return value.isoformat()
        case decimal.Decimal():
            return f"{value:f}"
        case _:
            return str(value)
