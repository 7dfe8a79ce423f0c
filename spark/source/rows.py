"""Rows of parts as Spark takes them: the columns asked for, by their types, a record batch at a time."""

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

#: A part of at most this size is read as a whole, by one request.
WHOLE_BYTES: Final = 1 << 20
#: Rows decoded at a time, fewer where they are wide: about this many bytes.
BATCH_ROWS: Final = 1 << 16
BATCH_BYTES: Final = 16 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Columns:
    """What is read of a table, and as what.

    Attributes:
        stored: Types of all columns of the table, by name.
        partition_by: Those of them that are folders.
        wanted: The columns asked for, in their order, as Spark expects them from Arrow.
    """

    stored: Mapping[str, pa.DataType]
    partition_by: tuple[str, ...]
    wanted: pa.Schema

    @property
    def in_files(self) -> list[str]:
        """Those of the columns asked for that files hold."""
        return [name for name in self.wanted.names if name not in self.partition_by]


def columns_of(definition: Mapping[str, Any], schema: StructType) -> Columns:
    """Return the columns of a read, checked against the table.

    Args:
        definition: Of the table, as agents tell it.
        schema: What Spark wants: the table's own, or the user's.

    Raises:
        SchemaMismatchError: A column is none of the table, has another type there, comes twice, or may be
            null there and is said not to be.
    """
    table = struct_of(definition)
    known = {field.name: field for field in table.fields}
    problems = []
    for field in schema.fields:
        found = known.get(field.name)
        if found is None:
            problems.append(f"there is no column {field.name}")
        elif found.dataType != field.dataType:
            problems.append(
                f"column {field.name} is {found.dataType.simpleString()}, and not "
                f"{field.dataType.simpleString()}"
            )
        elif found.nullable and not field.nullable:
            problems.append(f"column {field.name} may be null")
    if len(set(schema.names)) != len(schema.names):
        problems.append("a column comes more than once")
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
    """Return a batch with exactly the fields that Spark expects; its columns are those, in any order."""
    arrays = [batch.column(field.name).cast(field.type) for field in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def rows_of(files: SnapshotFiles, piece: Piece, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Read a piece of a part; where one replica gives something else, the next one goes on.

    Raises:
        CorruptError: What all of them give is not the part.
        Others as `SnapshotFiles.read`.
    """
    given = 0
    for left in reversed(range(files.replicas)):
        known = given  # these rows come again
        try:
            for batch in _read(files, piece, columns):
                new = batch.slice(min(known, batch.num_rows))
                known -= batch.num_rows - new.num_rows
                given += new.num_rows
                if new.num_rows:
                    yield new
        except CorruptError as error:
            if not left:
                raise
            _log.warning("%s; the next replica is asked", error.message)
            files.turn()
        else:
            return


def _read(files: SnapshotFiles, piece: Piece, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Read a piece of a part; always in the same order."""
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
        raise  # of Arrow it is an ArrowException as well, but the part is sound
    except (pa.ArrowException, OSError, KeyError) as error:
        raise CorruptError(
            f"part {piece.part} cannot be read from {piece.file}: {error}", part=piece.part, file=piece.file
        ) from error


def _stored(
    part: pq.ParquetFile, group: int, names: Sequence[str], count_max: int
) -> Iterator[tuple[int, dict[str, pa.Array]]]:
    """Yield numbers of rows of a row group, each with the columns of them that the file holds."""
    if names:
        for batch in part.iter_batches(count_max, row_groups=[group], columns=list(names)):
            yield batch.num_rows, dict(zip(batch.schema.names, batch.columns, strict=True))
        return
    rows = part.metadata.row_group(group).num_rows
    yield from ((min(count_max, rows - begin), {}) for begin in range(0, rows, count_max))


def _extent(group: Any) -> tuple[int, int]:
    """Where a row group begins in its file, and how many bytes it has."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    starts = [
        min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
        for chunk in chunks
    ]
    return min(starts), sum(chunk.total_compressed_size for chunk in chunks)


def _constants(partition: str, columns: Columns) -> dict[str, pa.Scalar]:
    """Return the values of a partition's path, of the columns asked for."""
    texts = texts_of(partition)
    wanted = [name for name in columns.partition_by if name in columns.wanted.names]
    return {name: _value(texts[name], columns.stored[name]) for name in wanted}


def _value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(None, kind) if text is None else pa.scalar(text).cast(kind)
