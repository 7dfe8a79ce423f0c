"""Rows as they come: Arrow IPC streams, whose senders are not trusted, and the rows that a table takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tidelock.errors import BadRequestError, TooLargeError
from tidelock.partition_paths import split
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.arrow_body import END
from tidelock.replica_agent.tables.schema import TableSchema


class CheckedRows(msgspec.Struct, frozen=True):
    """Rows of one insert that a table takes, by partition, and not yet encoded.

    Attributes:
        schema: The table's schema.
        version: The version of its definition.
        count: Number of rows.
        nbytes: Their bytes in memory.
        by_path: The rows of each partition, with the columns of the files.
    """

    schema: TableSchema
    version: int
    count: int
    nbytes: int
    by_path: Mapping[str, Sequence[pa.RecordBatch]]


def check_small(body: bytes, schema: TableSchema, version: int, settings: AgentSettings) -> CheckedRows:
    """Check a complete body, and split its rows by partition; errors as of :func:`encode_small`.

    Raises:
        TooLargeError: Also if the rows have more bytes than ``staged_memory_bytes_max``, with the defaults of
            columns that they lack.
    """
    by_path: dict[str, list[pa.RecordBatch]] = {}
    count = nbytes = 0
    for batch in batches_of(*whole(body), schema):
        conformed = schema.conform(batch, count)
        count += batch.num_rows
        nbytes += conformed.nbytes
        if nbytes > settings.staged_memory_bytes_max:
            raise _too_many_made(schema, settings.staged_memory_bytes_max)
        for path, rows in split(conformed, schema.partition_by):
            by_path.setdefault(path, []).append(rows)
    require_partitions(len(by_path), schema, settings)
    return CheckedRows(schema, version, count, nbytes, by_path)


def conformed(body: bytes, schema: TableSchema, bytes_max: int) -> pa.Table:
    """Return the rows of a complete body in the table's types; errors as of :func:`check_small`."""
    batches: list[pa.RecordBatch] = []
    count = nbytes = 0
    for batch in batches_of(*whole(body), schema):
        batches.append(schema.conform(batch, count))
        count += batch.num_rows
        nbytes += batches[-1].nbytes
        if nbytes > bytes_max:
            raise _too_many_made(schema, bytes_max)
    return pa.Table.from_batches(batches, schema.arrow)


def _too_many_made(schema: TableSchema, bytes_max: int) -> TooLargeError:
    return TooLargeError(
        f"the rows for table {schema.name} have more than staged_memory_bytes_max={bytes_max} bytes, with "
        "the nulls and defaults of columns that they lack: insert fewer at once",
        limit=bytes_max,
    )


def batches_of(
    source: Any, end: Callable[[], tuple[bytes, bool]], schema: TableSchema
) -> Iterator[pa.RecordBatch]:
    """Read an IPC stream and yield its rows, which can be rows of a table, as they came."""
    reader = _reading(pa.ipc.open_stream, source)
    _reading(schema.check, reader.schema)  # before any row
    at_once = schema.taken.rows_at_once(reader.schema)
    while (batch := _reading(_next_batch, reader)) is not None:
        for begin in range(0, batch.num_rows, at_once):
            yield batch.slice(begin, at_once)
    # A stream that was cut between two messages reads like a complete one.
    tail, more = end()
    if tail != END or more:
        raise _not_a_stream("bytes follow its end" if more else "its end is missing")


def _next_batch(reader: Any) -> pa.RecordBatch | None:
    try:
        batch = reader.read_next_batch()
    except StopIteration:
        return None
    # The sender is not trusted: offsets, UTF-8 and digits of decimals are used without further checks from
    # here on.
    batch.validate(full=True)
    return batch


def _reading(function: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return function(argument)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: names in the schema
        raise _not_a_stream(str(error)) from error


def _not_a_stream(problem: str) -> BadRequestError:
    return BadRequestError(f"the rows are not one complete Arrow IPC stream: {problem}; nothing was kept")


def whole(body: bytes) -> tuple[Any, Callable[[], tuple[bytes, bool]]]:
    """Return a complete body as the arguments of :func:`batches_of`."""
    source = pa.BufferReader(body)

    def end() -> tuple[bytes, bool]:
        position = source.tell()
        return body[max(position - len(END), 0) : position], position < len(body)

    return source, end


def require_partitions(found: int, schema: TableSchema, settings: AgentSettings) -> None:
    """Raise TooLargeError if an insert has rows of too many partitions."""
    limit = settings.partitions_per_insert_max
    if found > limit:
        raise TooLargeError(
            f"an insert into {schema.name} touches more than {limit} partitions "
            "(partitions_per_insert_max); sort the rows by partition and insert them in several calls",
            limit=limit,
            found=found,
        )
