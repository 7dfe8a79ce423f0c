"""The source rows of a merge: an Arrow IPC stream in a file, checked and in the types of the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from tidelock.column_names import OWN, same
from tidelock.errors import BadRequestError
from tidelock.replica_agent.storage.arrow_body import END
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.table_columns import Column

#: Column with the number of each row, from 0 in the order of the stream.
ROW = f"{OWN}row"
#: Rows that are passed on at a time.
BATCH_ROWS = 16 * 1024

T = TypeVar("T")


class MergeSource:
    """The stream in a file; read once.

    Attributes:
        schema: Its columns, then :data:`ROW`. Columns named like columns of the table have their types.

    Args:
        path: The file.
        table: The schema of the table.
        on: Columns of the key.
        exact: Whether its rows are rows of the table: they have its columns, and the default of those that
            they come without; generated ones may be missing. Otherwise they may have other columns, and lack
            some.

    Raises:
        BadRequestError: It is not an Arrow IPC stream, or a column of ``on`` is not in both.
        SchemaMismatchError: Its columns do not fit the table.
    """

    def __init__(self, path: Path, table: TableSchema, on: Sequence[str], *, exact: bool) -> None:
        self._length = path.stat().st_size
        self._file = pa.OSFile(str(path))
        self._reader = _reading(lambda: pa.ipc.open_stream(self._file))
        found: pa.Schema = self._reader.schema
        if exact:
            table.check(found)
        #: Columns that the rows come without, and have the default of.
        missing = (c for c in table.columns if exact and c.name not in found.names)
        made = [c.name for c in missing if c.generated is None]
        _check_names([*found.names, *made], table, on)
        columns = tuple(
            Column(c.name, c.type, default=c.default)
            for c in table.columns
            if c.name in found.names or c.name in made
        )
        self._common = TableSchema(table.id, table.name, columns)
        self._sent = [name for name in self._common.arrow.names if name not in made]
        self._common.check(pa.schema([found.field(name) for name in self._sent]))
        common = self._common.arrow
        self.schema = pa.schema(
            [
                *(common.field(field.name) if field.name in common.names else field for field in found),
                *map(common.field, made),
                pa.field(ROW, pa.int64()),
            ]
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows.

        Raises:
            BadRequestError: The stream is damaged or cut.
            SchemaMismatchError: A value does not fit its column.
        """
        row = 0
        while (whole := _reading(self._next)) is not None:
            # In pieces, since the engine processes a batch as a whole.
            for begin in range(0, whole.num_rows, BATCH_ROWS):
                batch = whole.slice(begin, BATCH_ROWS)
                yield self._numbered(batch, row)
                row += batch.num_rows
        # A stream that was cut between two messages reads like a complete one.
        end = self._file.tell()
        self._file.seek(max(end - len(END), 0))
        if end != self._length or self._file.read(len(END)) != END:
            raise _not_a_stream("bytes follow its end, or its end is missing")

    def _numbered(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        common = self._common.conform(batch.select(self._sent), first)
        arrays = [
            (common if name in common.schema.names else batch).column(name) for name in self.schema.names[:-1]
        ]
        numbers = pa.array(range(first, first + batch.num_rows), pa.int64())
        return pa.RecordBatch.from_arrays([*arrays, numbers], schema=self.schema)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _next(self) -> pa.RecordBatch | None:
        try:
            batch = self._reader.read_next_batch()
        except StopIteration:
            return None
        batch.validate(full=True)  # the sender is not trusted
        return batch


def _check_names(names: Sequence[str], table: TableSchema, on: Sequence[str]) -> None:
    counts = Counter(map(same, names))
    for name in names:
        if counts[same(name)] > 1 or same(name).startswith(OWN):
            raise BadRequestError(
                f"the rows have the column {name!r} twice (ignoring case), or it begins with {OWN}; "
                "rename it",
                column=name,
            )
    for name in on:
        if name not in names or name not in table.arrow.names:
            raise BadRequestError(
                f"on={name!r} is not a column of both: table {table.name} has "
                f"{', '.join(table.arrow.names)}; the rows have {', '.join(names)}",
                column=name,
            )


def _reading(step: Callable[[], T]) -> T:
    try:
        return step()
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _not_a_stream(str(error)) from error


def _not_a_stream(problem: str) -> BadRequestError:
    return BadRequestError(f"the rows are not one complete Arrow IPC stream: {problem}; nothing was kept")
