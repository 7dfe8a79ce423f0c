"""A table of a snapshot as DuckDB scans it: its parts one after the other, verified, pruned, and filtered.

DuckDB asks for columns and a filter. The filter prunes the folders of the partitions, then parts by the
statistics in the catalog, before any part is opened; then row groups by the statistics of their footer. The
rest is read in small batches, one row group of one part at a time, so memory does not grow with the table.
Every byte comes through the block digests of the catalog: rows are right, or the scan fails and names the
part.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyarrow import types

from tidelock.column_names import OWN
from tidelock.csnlog.core.ids import PartId
from tidelock.errors import BadRequestError, CorruptError, StandbyError
from tidelock.parquet_leaves import has_floats, is_of
from tidelock.parquet_rows import row_bytes
from tidelock.ranged_file import RangedFile
from tidelock.replica_agent.footers import cutting
from tidelock.replica_agent.footers.evolving import evolve
from tidelock.replica_agent.footers.thrift import TAIL_BYTES, footer_in
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replica_agent.tables.partitions import values_of
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.tables.statistics import Statistics, bounds_of, shown_statistics
from tidelock.replication.verified_range import VerifiedRange

#: Most rows decoded at a time; fewer if they are wide.
BATCH_ROWS = 32 * 1024
BATCH_BYTES = 4 << 20
#: Fewest rows decoded at a time; the engine works on as many at a time, and fewer make it slow.
BATCH_ROWS_MIN = 2 * 1024
#: A part of this size is read and verified at once; a larger one in pieces of this size at most.
READ_BYTES = 1 << 20

#: Column with the row group of each row, where requested, as a number for :func:`row_group`; no column of a
#: table has such a name.
GROUP_COLUMN = f"{OWN}group"
#: More row groups than a part has.
_GROUPS = 1 << 32

_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
_FORMAT = ds.ParquetFileFormat()
#: Names that an expression shows as words of their own. Its text shows the others as they are.
_WORD = re.compile(r"[A-Za-z0-9_]+")


def bits_of(arrow: pa.DataType) -> pa.DataType:
    """Return a type with integers of the same width in place of floating-point numbers, at any depth."""
    if types.is_map(arrow):
        return pa.map_(bits_of(arrow.key_type), bits_of(arrow.item_type))
    if types.is_list(arrow):
        return pa.list_(arrow.value_field.with_type(bits_of(arrow.value_type)))
    if types.is_struct(arrow):
        return pa.struct([field.with_type(bits_of(field.type)) for field in arrow])
    return _BITS.get(arrow, arrow)


def _no_statistics(parts: Sequence[PartRow]) -> Iterable[Statistics]:
    return [{} for _ in parts]


def _nothing(_: frozenset[str]) -> None:
    pass


class TableSource(msgspec.Struct, frozen=True):
    """The source of a table's rows for scans.

    Attributes:
        schema: The table's schema at the snapshot.
        data_dir: The replica's data directory.
        parts: Returns the visible parts; called once for each scan, in any thread.
        failed: Called with the error of a scan, since DuckDB passes on its text only.
        statistics: Returns the catalog's statistics of some parts, in their order.
        pruned: Called by each scan with the partitions that have no row which it could have returned.
        numbers: The numbers of the parts in :data:`GROUP_COLUMN`; None: no such column exists.
        groups: The row groups that are read of some parts; of all others, all are.
        bits: Floating-point numbers are shown as the integers of their bits, so only equal bits are equal:
            for DuckDB all NaN are equal, and -0.0 equals 0.0.
    """

    schema: TableSchema
    data_dir: Path
    parts: Callable[[], Sequence[PartRow]]
    failed: Callable[[Exception], None]
    statistics: Callable[[Sequence[PartRow]], Iterable[Statistics]] = _no_statistics
    pruned: Callable[[frozenset[str]], None] = _nothing
    numbers: Mapping[PartId, int] | None = None
    groups: Mapping[PartId, Collection[int]] = msgspec.field(default_factory=dict)
    bits: bool = False

    @property
    def arrow(self) -> pa.Schema:
        """The columns that a scan can request."""
        arrow = self.schema.arrow
        if self.bits:
            arrow = pa.schema([field.with_type(bits_of(field.type)) for field in arrow])
        if self.numbers is None:
            return arrow
        return arrow.append(pa.field(GROUP_COLUMN, pa.int64(), nullable=False))


class Scanned(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """A dataset for DuckDB: a pyarrow Dataset by its class only, since only those are offered filters.

    Args:
        arrow: Its columns.
        begin: Begins a scan of some columns, of the rows where a condition (an Arrow expression) is true.
    """

    def __init__(self, arrow: pa.Schema, begin: Callable[[Sequence[str], Any], Any]) -> None:
        super().__init__([], arrow, _FORMAT, pafs.LocalFileSystem())
        self._names, self._begin = arrow.names, begin

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None) -> Any:  # noqa: A002
        """Begin a scan; None for ``columns`` stands for all of them."""
        return self._begin(self._names if columns is None else list(columns), filter)


class SnapshotTable(Scanned):
    """The rows of a table at a snapshot."""

    def __init__(self, source: TableSource) -> None:
        super().__init__(source.arrow, functools.partial(_Scan, source))


class _Scan:
    """One scan; DuckDB calls :meth:`to_reader` once."""

    def __init__(self, source: TableSource, columns: Sequence[str], condition: Any) -> None:
        arrow = source.arrow
        self._source = source
        self._condition = condition
        self.projected_schema = pa.schema([arrow.field(name) for name in columns])
        self._mentioned = mentioned_in(condition, arrow.names)
        needed = [name for name in arrow.names if name in columns or name in self._mentioned]
        self._read_schema = pa.schema([arrow.field(name) for name in needed])
        stored = source.schema.file_arrow.names
        self._file_columns = [name for name in needed if name in stored]

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            parts = self._source.parts()
            folders = _Folders(self._source.schema, {part.path for part in parts}, self._condition)
            self._source.pruned(frozenset(folders.pruned))
            for part in self._wanted([part for part in parts if part.path not in folders.pruned]):
                yield from self._part(part, folders)
        except Exception as error:
            self._source.failed(error)
            raise

    def _wanted(self, parts: Sequence[PartRow]) -> Sequence[PartRow]:
        """Leave out the parts that have no matching row according to the catalog."""
        names = [column for column in self._source.schema.columns if column.name in self._mentioned]
        if not names:
            return parts
        known = self._source.statistics(parts)
        guarantees = []
        for part, statistics in zip(parts, known, strict=True):
            found = shown_statistics(statistics, self._source.schema.layout(part.columns_csn))
            guarantees.append(
                all_of(bounds_of(found[column.name], column) for column in names if column.name in found)
            )
        return [parts[number] for number in matching(guarantees, self._condition, self._source.arrow)]

    def _part(self, part: PartRow, folders: _Folders) -> Iterator[pa.RecordBatch]:
        try:
            with _open(self._source.data_dir, part, self._source.schema) as file:
                for batch in self._rows(file, part, folders):
                    yield self._filtered(batch).select(self.projected_schema.names)
        except CorruptError as error:
            raise _corrupt(part, error.message) from error
        except MemoryError:
            raise  # of Arrow: it is an ArrowException as well, but the part is sound
        except KeyError as error:
            raise _corrupt(part, f"it has no column {error}") from error
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _corrupt(part, str(error)) from error

    def _filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows where the condition is true.

        Raises:
            BadRequestError: It cannot be evaluated; the part is not at fault.
        """
        if self._condition is None:
            return batch
        try:
            return batch.filter(self._condition)
        except MemoryError:
            raise
        except pa.ArrowException as error:
            raise BadRequestError(f"the condition cannot be evaluated: {error}") from error

    def _rows(self, file: pa.NativeFile, part: PartRow, folders: _Folders) -> Iterator[pa.RecordBatch]:
        metadata, row_groups = None, None
        if self._condition is not None:
            fragment = _FORMAT.make_fragment(file, partition_expression=folders.expression(part.path))
            matching = fragment.subset(filter=self._condition, schema=self._source.arrow)
            metadata, row_groups = fragment.metadata, [group.id for group in matching.row_groups]
        metadata = pq.read_metadata(file) if metadata is None else metadata
        if metadata.num_rows != part.rows:
            raise CorruptError(f"it holds {metadata.num_rows} rows, the catalog says {part.rows}")
        sizes = _Sizes.of(metadata, set(self._file_columns))
        parquet = pq.ParquetFile(file, metadata=metadata, buffer_size=sizes.buffer_bytes)
        if row_groups is None:
            row_groups = list(range(parquet.metadata.num_row_groups))
        if part.part in self._source.groups:
            row_groups = [group for group in row_groups if group in self._source.groups[part.part]]
        constants = dict(folders.scalars(part.path))
        first = 0 if self._source.numbers is None else self._source.numbers[part.part] * _GROUPS
        for group, count, stored in self._stored(parquet, row_groups, sizes.batch_rows):
            constants[GROUP_COLUMN] = pa.scalar(first + group, pa.int64())
            arrays = [
                stored[name] if name in stored else pa.repeat(constants[name], count)
                for name in self._read_schema.names
            ]
            if self._source.bits:
                arrays = [
                    array.view(bits_of(array.type)) if has_floats(array.type) else array for array in arrays
                ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._read_schema)

    def _stored(
        self, parquet: pq.ParquetFile, row_groups: Sequence[int], batch_rows: int
    ) -> Iterator[tuple[int, int, dict[str, pa.Array]]]:
        """Yield row groups and numbers of rows, with the columns that the file has of these rows."""
        if self._file_columns:
            for group in row_groups:  # one by one: Arrow keeps the bytes read until the last group
                for batch in parquet.iter_batches(batch_rows, row_groups=[group], columns=self._file_columns):
                    stored = {name: self._in_type(name, batch.column(name)) for name in batch.schema.names}
                    yield group, batch.num_rows, stored
            return
        for group in row_groups:
            rows = parquet.metadata.row_group(group).num_rows
            for begin in range(0, rows, BATCH_ROWS):
                yield group, min(BATCH_ROWS, rows - begin), {}

    def _in_type(self, name: str, values: pa.Array) -> pa.Array:
        """Return values in the type of their column, which may be wider than that of the file."""
        wanted = self._source.schema.arrow.field(name).type
        return values if values.type == wanted or types.is_nested(wanted) else values.cast(wanted)


class _Sizes(msgspec.Struct, frozen=True):
    """The sizes with which a file is read, so that the memory for it does not grow with its columns.

    Attributes:
        buffer_bytes: Buffer of each column; the reader allocates all of it, however short the column is.
        batch_rows: Rows decoded at a time.
    """

    buffer_bytes: int
    batch_rows: int

    @classmethod
    def of(cls, metadata: pq.FileMetaData, names: Collection[str]) -> _Sizes:
        """Return the sizes for some columns of a file."""
        stored = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            chunks = (group.column(index) for index in range(group.num_columns))
            read = (chunk for chunk in chunks if is_of(chunk.path_in_schema, names))
            stored = max([stored, *(chunk.total_compressed_size for chunk in read)])
        rows = BATCH_BYTES // row_bytes(metadata, names)
        return cls(max(1, min(READ_BYTES, stored)), max(BATCH_ROWS_MIN, min(BATCH_ROWS, rows)))


class _Folders:
    """The partitions in a scan: their values, and which of them the filter excludes."""

    def __init__(self, schema: TableSchema, paths: set[str], condition: Any) -> None:
        self._schema = schema
        self._scalars = {path: self._read(path) for path in sorted(paths)}
        self.pruned = set() if condition is None else paths - self._prune(condition)

    def scalars(self, path: str) -> dict[str, pa.Scalar]:
        """Return the values of a partition by column."""
        return self._scalars[path]

    def expression(self, path: str) -> Any:
        """Return an expression that is true for every row of a partition."""
        return all_of(
            pc.field(name) == value if value.is_valid else pc.field(name).is_null()
            for name, value in self._scalars[path].items()
        )

    def _read(self, path: str) -> dict[str, pa.Scalar]:
        values = values_of(path, self._schema)
        return {
            column.name: pa.scalar(values[column.name], column.arrow.type)
            for column in self._schema.partition_columns
        }

    def _prune(self, condition: Any) -> set[str]:
        paths = list(self._scalars)
        guarantees = [self.expression(path) for path in paths]
        return {paths[number] for number in matching(guarantees, condition, self._schema.arrow)}


def mentioned_in(condition: Any, names: Iterable[str]) -> set[str]:
    """Return the columns that a condition may have: it does not list them, but its text shows them all."""
    if condition is None:
        return set()
    text = str(condition)
    words = set(_WORD.findall(text))
    return {name for name in names if name in words or (name in text and not _WORD.fullmatch(name))}


def all_of(conditions: Iterable[Any]) -> Any:
    """Return the expression that is true where all of these are."""
    return functools.reduce(operator.and_, conditions, pc.scalar(True))


def matching(guarantees: Sequence[Any], condition: Any, schema: pa.Schema) -> list[int]:
    """Return the numbers of the guarantees under which a row may match the condition.

    A guarantee is true for all rows of its fragment. Arrow uses it to simplify a filter without opening the
    fragment; these fragments are never opened.
    """
    system = pafs.LocalFileSystem()
    fragments = [
        _FORMAT.make_fragment(str(number), system, partition_expression=known)
        for number, known in enumerate(guarantees)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, _FORMAT, system)
    return [int(fragment.path) for fragment in dataset.get_fragments(filter=condition)]


class _PartFile(RangedFile):
    """The verified bytes of a part, every read of which is checked against the digests, and another end.

    Args:
        part: The bytes.
        data_bytes: How many of them are read.
        end: What follows them.
    """

    def __init__(self, part: VerifiedRange, data_bytes: int, end: bytes = b"") -> None:
        super().__init__(data_bytes + len(end))
        self._part, self._data_bytes, self._end = part, data_bytes, end

    def read_range(self, start: int, size: int) -> bytes:
        behind = start + size - self._data_bytes
        if behind <= 0:
            return self._part.read(start, size)
        data = self._part.read(start, size - behind) if behind < size else b""
        return data + self._end[max(0, start - self._data_bytes) : behind]

    def close(self) -> None:
        if not self.closed:
            self._part.close()
        super().close()


def row_group(number: int) -> tuple[int, int]:
    """Return the number of the part, and that of the row group in it, of a value of :data:`GROUP_COLUMN`."""
    return divmod(number, _GROUPS)


def rows_by_group(data_dir: Path, part: PartRow, schema: TableSchema) -> tuple[int, ...] | None:
    """Return the rows of each row group of a part; None if its file cannot be cut, or has other columns.

    Raises:
        CorruptError, StandbyError: As for a scan.
    """
    if schema.layout(part.columns_csn) is not None:
        return None
    try:
        with _verified(data_dir, part) as file:
            return cutting.rows_by_group(footer_in(file.read, part.length))
    except CorruptError as error:
        raise _corrupt(part, error.message) from error
    except ValueError:
        return None


def _open(data_dir: Path, part: PartRow, schema: TableSchema) -> pa.NativeFile:
    """Open a part for the Parquet reader, with the columns of a schema; errors as :func:`_verified`.

    Raises:
        ValueError: It is no Parquet file with the columns that it is to have.
    """
    bytes_of = _verified(data_dir, part)
    data_bytes, end = part.length, b""
    layout = schema.layout(part.columns_csn)
    if layout is not None:
        footer = footer_in(bytes_of.read, part.length)
        data_bytes = part.length - len(footer) - TAIL_BYTES
        pages, end = evolve(footer, schema.footer, layout.columns, pages_at=data_bytes)
        end = pages + end
    if part.length > READ_BYTES:
        return pa.PythonFile(_PartFile(bytes_of, data_bytes, end), mode="r")
    with bytes_of:
        return pa.BufferReader(bytes_of.read(0, data_bytes) + end)


def _verified(data_dir: Path, part: PartRow) -> VerifiedRange:
    """Open a part.

    Raises:
        CorruptError: The part is quarantined, or its bytes are not the written ones.
        StandbyError: The part is not on this replica yet.
    """
    if part.state == "quarantined":
        raise CorruptError("its bytes were found damaged and have not been fetched again yet")
    location = part.held
    if location is None:
        raise StandbyError(
            f"part {part.part} of table {part.table} is not on this replica yet; try another", part=part.part
        )
    return VerifiedRange(data_dir, location)


def _corrupt(part: PartRow, problem: str) -> CorruptError:
    return CorruptError(
        f"part {part.part} of table {part.table} cannot be read here: {problem}; use another replica",
        part=part.part,
        table=part.table,
    )
