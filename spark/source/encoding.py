"""Encoding of a task's rows as Parquet files of a table: split by partition, and sent while rows arrive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidelock.client.agents.webhdfs import Upload
from tidelock.column_defaults import scalar_of
from tidelock.errors import BadRequestError, SchemaMismatchError
from tidelock.part_layout import FloatColumns, mark, parquet_options, sorted_by
from tidelock.partition_paths import split

#: Sizes of row groups and files, equal to the agents' defaults (`row_group_rows`, `row_group_bytes`,
#: `part_bytes_max`). The second is also the limit of memory for waiting rows, of all partitions together.
ROW_GROUP_ROWS: Final = 1_000_000
ROW_GROUP_BYTES: Final = 128 << 20
FILE_BYTES: Final = 1 << 30
#: Files that are open at once, at most one per partition. Beyond it the least recently used file is ended.
FILES_OPEN_MAX: Final = 16
#: A row group that takes less memory is compressed by the faster codec.
SMALL_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The layout of a table's files.

    Attributes:
        table: Full name of the table.
        arrow: All columns of the table, with their types.
        partition_by: Columns that become folders.
        sort_by: Columns by which the rows of a row group are sorted.
        defaults: The types and the texts of defaults, by the columns that have one (`column_defaults`).
    """

    table: str
    arrow: pa.Schema
    partition_by: tuple[str, ...]
    sort_by: tuple[str, ...]
    defaults: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def stored(self) -> pa.Schema:
        """The columns that files hold: all but the partition columns."""
        return pa.schema([one for one in self.arrow if one.name not in self.partition_by])

    def require_partitions(self) -> None:
        """Raise BadRequestError unless the table has partitions to replace."""
        if not self.partition_by:
            raise BadRequestError(f"table {self.table} has no partitions; omit option overwritePartitions")

    def conform(self, arrays: Sequence[pa.Array], names: Sequence[str]) -> pa.RecordBatch:
        """Return rows with the table's columns, in the table's order and types; missing ones get defaults.

        Raises:
            SchemaMismatchError: A required column holds a null.
        """
        columns = dict(zip(names, arrays, strict=True))
        for name in self.defaults.keys() - columns.keys():
            columns[name] = pa.repeat(scalar_of(*self.defaults[name]), len(arrays[0]))
        for one in self.arrow:
            if not one.nullable and columns[one.name].null_count:
                raise SchemaMismatchError(
                    f"column {one.name} of table {self.table} is required, but rows hold a null in it; "
                    "give these rows a value",
                    table=self.table,
                    column=one.name,
                )
        return pa.RecordBatch.from_arrays(
            [columns[one.name].cast(one.type) for one in self.arrow], schema=self.arrow
        )


class _Partition:
    """The waiting rows of one partition, and the open file that they will be written to."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0
        self.bytes = 0
        self.upload: Upload | None = None
        self.writer: pq.ParquetWriter | None = None
        self.used_at = 0
        #: Those of all rows until now.
        self.floats = FloatColumns()


class Encoder:
    """Encoder of the rows of a task into files.

    Args:
        layout: Layout of the table's files.
        begin: Begins the n-th file, in a partition's folder.
    """

    def __init__(self, layout: FileLayout, begin: Callable[[str, int], Upload]) -> None:
        self.files: list[str] = []
        self.rows = self.bytes = 0
        self._layout, self._begin = layout, begin
        self._partitions: dict[str, _Partition] = {}
        self._waiting_bytes = 0
        self._files_begun = 0
        self._additions = 0

    @property
    def partitions(self) -> set[str]:
        """Paths of the partitions that rows were added to."""
        return set(self._partitions)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add conformed rows.

        Raises:
            SchemaMismatchError, TooLargeError: A partition value cannot be the name of a folder.
            RefusedError, UnavailableError: As `StagingFolder.locate`.
        """
        for path, rows in split(batch, self._layout.partition_by):
            self._add(path, rows)
        self.rows += batch.num_rows

    def finish(self) -> None:
        """End all files; errors as `add`."""
        for path, partition in self._partitions.items():
            self._encode(path, partition)
            self._end(partition)

    def abandon(self) -> None:
        """Abandon the upload of each file that is not ended."""
        for partition in self._partitions.values():
            if partition.upload is not None:
                partition.upload.abandon()

    def _add(self, path: str, rows: pa.RecordBatch) -> None:
        partition = self._partitions.setdefault(path, _Partition())
        self._additions += 1
        partition.used_at = self._additions
        while rows.num_rows:
            piece = rows.slice(0, ROW_GROUP_ROWS - partition.rows)
            rows = rows.slice(piece.num_rows)
            partition.batches.append(piece)
            partition.rows += piece.num_rows
            partition.bytes += piece.nbytes
            self._waiting_bytes += piece.nbytes
            if partition.rows >= ROW_GROUP_ROWS:
                self._encode(path, partition)
        while self._waiting_bytes >= ROW_GROUP_BYTES:
            largest = max(self._partitions.items(), key=lambda item: item[1].bytes)
            self._encode(*largest)

    def _encode(self, path: str, partition: _Partition) -> None:
        """Write a partition's waiting rows as one row group."""
        if not partition.batches:
            return
        rows = pa.Table.from_batches(partition.batches)
        if self._layout.sort_by:
            rows = sorted_by(rows, self._layout.sort_by)
        floats = partition.floats | FloatColumns.of(rows)
        if floats != partition.floats:
            partition.floats = floats
            self._end(partition)
        writer = partition.writer or self._open(path, partition)
        writer.write_table(rows, row_group_size=rows.num_rows)
        self._waiting_bytes -= partition.bytes
        partition.batches, partition.rows, partition.bytes = [], 0, 0
        assert partition.upload is not None
        if partition.upload.length >= FILE_BYTES:
            self._end(partition)

    def _open(self, path: str, partition: _Partition) -> pq.ParquetWriter:
        writing = [candidate for candidate in self._partitions.values() if candidate.upload is not None]
        if len(writing) >= FILES_OPEN_MAX:
            self._end(min(writing, key=lambda candidate: candidate.used_at))
        partition.upload = self._begin(path, self._files_begun)
        self._files_begun += 1
        partition.writer = pq.ParquetWriter(
            partition.upload,
            self._layout.stored,
            **parquet_options(
                partition.rows,
                partition.bytes < SMALL_BYTES,
                self._layout.stored,
                partition.floats,
            ),
        )
        return partition.writer

    def _end(self, partition: _Partition) -> None:
        """End a partition's file; later rows of the partition go to another file."""
        if partition.writer is None or partition.upload is None:
            return
        mark(partition.writer)
        partition.writer.close()
        partition.upload.finish()
        self.files.append(partition.upload.path)
        self.bytes += partition.upload.length
        partition.writer = partition.upload = None
