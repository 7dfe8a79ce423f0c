"""Decoding of parts into record batches of the requested columns, in the types that Spark expects."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidelock.errors import CorruptError, SchemaMismatchError
from tidelock.parquet_rows import row_bytes
from tidelock.partition_paths import texts_of
from tidelock.spark.schema import arrow_of, struct_of
from tidelock.spark.source.files import RemoteFile, SnapshotFiles
from tidelock.spark.source.pieces import Piece, require_rows
from tidelock.wire.rows import Fields

#: A part of at most this size is read whole, by one request.
WHOLE_BYTES: Final = 1 << 20
#: Most rows that are decoded at a time; fewer if they are wide, so that they take about so many bytes.
BATCH_ROWS: Final = 1 << 16
BATCH_BYTES: Final = 16 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a read.

    Attributes:
        stored: Types of all columns of the table, by name.
        partition_by: Names of the partition columns, which files do not hold.
        wanted: The requested columns, in their order, with the Arrow types that Spark expects.
    """

    stored: Mapping[str, pa.DataType]
    partition_by: tuple[str, ...]
    wanted: pa.Schema

    @property
    def in_files(self) -> list[str]:
        """Names of the requested columns that files hold."""
        return [name for name in self.wanted.names if name not in self.partition_by]


def columns_of(definition: Fields, schema: StructType) -> Columns:
    """Return the columns of a read, checked against the table.

    Args:
        definition: Definition of the table, as agents return it.
        schema: The schema that Spark wants: the table's or the user's.

    Raises:
        SchemaMismatchError: A column does not exist in the table, has another type there, occurs twice, or
            may be null in the table and not in the schema.
    """
    table = struct_of(definition)
    fields = {field.name: field for field in table.fields}
    problems = []
    for field in schema.fields:
        stored = fields.get(field.name)
        if stored is None:
            problems.append(f"there is no column {field.name}")
        elif stored.dataType != field.dataType:
            problems.append(
                f"column {field.name} is {stored.dataType.simpleString()}, and not "
                f"{field.dataType.simpleString()}"
            )
        elif stored.nullable and not field.nullable:
            problems.append(f"column {field.name} may be null")
    if len(set(schema.names)) != len(schema.names):
        problems.append("a column occurs more than once")
    if problems or not schema.fields:
        raise SchemaMismatchError(
            f"the schema does not fit table {definition['name']}: "
            f"{'; '.join(problems) or 'it has no column'}; its columns are {table.simpleString()[7:-1]}",
            table=definition["name"],
        )
    arrow = arrow_of(definition)
    return Columns(
        {field.name: field.type for field in arrow},
        tuple(definition["partition_by"]),
        to_arrow_schema(schema, timezone="UTC"),
    )


def shaped(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return a batch with exactly the fields that Spark expects; the given batch has them in any order."""
    arrays = [batch.column(field.name).cast(field.type) for field in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def rows_of(files: SnapshotFiles, piece: Piece, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece of a part; if a replica returns damaged bytes, the next one continues.

    Raises:
        CorruptError: The bytes of every replica are damaged.
        Others as `SnapshotFiles.read`.
    """
    yielded = 0
    for replicas_left in reversed(range(files.replicas)):
        repeated = yielded  # the next replica's first rows, which were yielded before
        try:
            for batch in _read(files, piece, columns):
                new = batch.slice(min(repeated, batch.num_rows))
                repeated -= batch.num_rows - new.num_rows
                yielded += new.num_rows
                if new.num_rows:
                    yield new
        except CorruptError as error:
            if not replicas_left:
                raise
            _log.warning("%s; the next replica is asked", error.message)
            files.prefer_next()
        else:
            return


def _read(files: SnapshotFiles, piece: Piece, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece of a part, always in the same order."""
    if piece.length <= WHOLE_BYTES:
        source: pa.NativeFile = pa.BufferReader(files.read(piece.file, 0, piece.length))
    else:
        source = pa.PythonFile(RemoteFile(files, piece.file, piece.length), mode="r")
    constants = _constants(piece.partition, columns)
    try:
        with pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True) as part:
            require_rows(piece, part.metadata.num_rows)
            count_max = max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes(part.metadata, columns.in_files)))
            for group in range(part.metadata.num_row_groups):
                if not piece.holds(*_extent(part.metadata.row_group(group))):
                    continue
                for count, stored in _stored(part, group, columns.in_files, count_max):
                    arrays = {name: pa.repeat(value, count) for name, value in constants.items()} | stored
                    yield pa.RecordBatch.from_arrays(
                        [arrays[field.name].cast(field.type) for field in columns.wanted],
                        schema=columns.wanted,
                    )
    except MemoryError:
        raise  # Arrow's MemoryError is also an ArrowException, but the part is sound
    except (pa.ArrowException, OSError, KeyError) as error:
        raise CorruptError(
            f"part {piece.part} cannot be read from {piece.file}: {error}", part=piece.part, file=piece.file
        ) from error


def _stored(
    part: pq.ParquetFile, group: int, names: Sequence[str], count_max: int
) -> Iterator[tuple[int, dict[str, pa.Array]]]:
    """Yield batches of a row group: the number of rows, and the requested columns that the file holds."""
    if names:
        for batch in part.iter_batches(count_max, row_groups=[group], columns=list(names)):
            yield batch.num_rows, dict(zip(batch.schema.names, batch.columns, strict=True))
        return
    rows = part.metadata.row_group(group).num_rows
    yield from ((min(count_max, rows - begin), {}) for begin in range(0, rows, count_max))


def _extent(group: Any) -> tuple[int, int]:
    """Return the position of a row group in its file, and its length in bytes."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    starts = [
        min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
        for chunk in chunks
    ]
    return min(starts), sum(chunk.total_compressed_size for chunk in chunks)


def _constants(partition: str, columns: Columns) -> dict[str, pa.Scalar]:
    """Return the values of the requested partition columns, from the partition's path."""
    texts = texts_of(partition)
    wanted = [name for name in columns.partition_by if name in columns.wanted.names]
    return {name: _value(texts[name], columns.stored[name]) for name in wanted}


def _value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(None, kind) if text is None else pa.scalar(text).cast(kind)
