"""Streaming reads: the rows that commits add to a table, or its change feed.

A reader exists in three kinds of processes: where the query is checked when it starts; beside the driver,
where it tails the table (`table_tailer`); and, pickled, in each task. Making a reader connects to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidelock.errors import SchemaMismatchError
from tidelock.spark.schema import struct_of
from tidelock.spark.source.connections import connected, environment, shared_client
from tidelock.spark.source.feed_columns import Inserted, marked, require_feed, with_feed, without_feed
from tidelock.spark.source.files import SnapshotFiles
from tidelock.spark.source.pieces import Piece, groups, pieces
from tidelock.spark.source.reading import SnapshotRoute, snapshot_route
from tidelock.spark.source.retries import retry_while_unavailable
from tidelock.spark.source.rows import Columns, columns_of, rows_of, shaped
from tidelock.spark.source.stream_offsets import BatchLimits, Position, added_parts
from tidelock.spark.source.stream_options import ReadStreamOptions, read_stream_options
from tidelock.spark.source.table_tailer import BatchPlan, TableTailer


@dataclass(frozen=True, slots=True)
class PieceSource:
    """A piece of a part, the CSN at which its file is read, and the change feed's values for its rows."""

    csn: int
    piece: Piece
    inserted: Inserted | None


class Added(InputPartition):
    """A task that reads pieces of added parts."""

    def __init__(self, route: SnapshotRoute, columns: Columns, sources: Sequence[PieceSource]) -> None:
        super().__init__(None)
        self.route, self.columns, self.sources = route, columns, sources


class Changed(InputPartition):
    """A task that reads the changes of one commit that has removed rows; an agent computes them."""

    def __init__(self, csn: int) -> None:
        super().__init__(None)
        self.csn = csn


def stream_schema(options: ReadStreamOptions) -> StructType:
    """Return a stream's schema if the user gives none; errors as `Database.table` and `tidelock.connect`."""
    with connected(options.target) as db:
        table = struct_of(db.table(options.target.table))
    return with_feed(table) if options.change_feed else table


class TidelockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a table as a stream.

    Args:
        user_options: The options of the user, unparsed, so that a secret of the environment is not pickled.
        schema: The wanted columns of the table and of its change feed.

    Raises:
        BadRequestError: An option is wrong.
        SchemaMismatchError: The schema has a column of the change feed that is not read, or that has another
            type.
    """

    def __init__(self, user_options: Mapping[str, str], schema: StructType) -> None:
        self._user_options = dict(user_options)
        self._schema = schema
        options = self._options()
        problems = require_feed(schema)
        if not options.change_feed and len(without_feed(schema)) != len(schema):
            problems.append("the columns of the change feed need option readChangeFeed")
        if problems:
            raise SchemaMismatchError(f"the schema does not fit the stream: {'; '.join(problems)}")
        self._open_tailer: TableTailer | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the secret out, unless tasks need it to ask agents for changes."""
        user_options = self._user_options
        if not self._options().change_feed:
            user_options = {name: value for name, value in user_options.items() if name.lower() != "token"}
        return {"_user_options": user_options, "_schema": self._schema, "_open_tailer": None}

    def _options(self) -> ReadStreamOptions:
        return read_stream_options(self._user_options, environment())

    def _tailer(self) -> TableTailer:
        """Return the tailer of this process; the first call makes it."""
        if self._open_tailer is None:
            self._open_tailer = TableTailer(self._options())
        return self._open_tailer

    # -- beside the driver ----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - PySpark's name
        """Return the offset where a new query begins."""
        return self._tailer().begin().offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        """Return the limit of files, else of bytes, of the options; `_limits` adds the second of two."""
        options = self._options()
        if options.files_max is not None:
            return ReadMaxFiles(options.files_max)
        return ReadAllAvailable() if options.bytes_max is None else ReadMaxBytes(options.bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        """Make the query end at the newest commit of now."""
        self._tailer().stop_at_newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - PySpark's name
        """Return the end of the next batch; waits a moment if nothing new exists."""
        return self._tailer().advance(Position.parse(start), self._limits(limit)).offset()

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - PySpark's name
        """Return the newest known offset of the table, for the progress of the query."""
        newest = self._tailer().newest
        return None if newest is None else {"csn": newest}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        if start == end:
            return []
        tailer = self._tailer()
        batch = tailer.plan(Position.parse(start), Position.parse(end))
        options = self._options()
        changed: list[InputPartition] = []
        if options.change_feed:
            changed += [Changed(changes.csn) for changes in batch.sets if changes.removed]
        sources = list(_sources(batch, options))
        if not sources:
            return changed
        route = snapshot_route(tailer.status(), options.target, failover=options.failover)
        columns = columns_of(tailer.definition(), without_feed(self._schema))
        by_piece = {source.piece: source for source in sources}
        return [
            *changed,
            *(
                Added(
                    route,
                    columns,
                    sorted((by_piece[piece] for piece in group), key=lambda source: source.csn),
                )
                for group in groups(by_piece, options.partition_bytes)
            ),
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Release the history before an offset; the query does not read it again."""
        self._tailer().release(Position.parse(end))

    def stop(self) -> None:
        """Close the tailer; the query has ended."""
        if self._open_tailer is not None:
            self._open_tailer.close()

    def _limits(self, limit: ReadLimit) -> BatchLimits:
        options = self._options()
        match limit:
            case ReadMaxFiles(files_max):
                return BatchLimits(files_max, options.bytes_max)
            case ReadMaxBytes(bytes_max):
                return BatchLimits(None, bytes_max)
            case _:
                return BatchLimits()

    # -- in tasks -------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task; raise if not all of them can be read."""
        match partition:
            case Added():
                yield from self._added(partition)
            case Changed():
                yield from self._changed(partition.csn)

    def _wanted(self) -> pa.Schema:
        return to_arrow_schema(self._schema, timezone="UTC")

    def _added(self, task: Added) -> Iterator[pa.RecordBatch]:
        wanted = self._wanted()
        with ExitStack() as stack:
            files: SnapshotFiles | None = None
            open_csn = None
            for source in task.sources:
                if files is None or open_csn != source.csn:
                    stack.close()
                    files = task.route.files(source.csn)
                    stack.callback(files.close)
                    open_csn = source.csn
                for batch in rows_of(files, source.piece, task.columns):
                    yield marked(batch, wanted, source.inserted)

    def _changed(self, csn: int) -> Iterator[pa.RecordBatch]:
        options, wanted = self._options(), self._wanted()
        target = replace(options.target, replica=None) if options.failover else options.target
        db = shared_client(target)

        def begin() -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]:
            # The tailer keeps this CSN pinned until Spark has committed the batch.
            batches = db.changes(target.table, csn - 1, csn, pinned=True).to_batches()
            return list(islice(batches, 1)), batches

        head, rest = retry_while_unavailable(begin)
        for batch in chain(head, rest):
            yield shaped(batch, wanted)


def _sources(batch: BatchPlan, options: ReadStreamOptions) -> Iterator[PieceSource]:
    """Cut the parts of a batch into pieces for tasks."""
    size = options.partition_bytes
    inserted = Inserted(batch.csn, None) if options.change_feed else None
    for piece in pieces(batch.first, size):
        yield PieceSource(batch.csn, piece, inserted)
    for changes in batch.sets:
        if options.change_feed and changes.removed:
            continue
        inserted = Inserted(changes.csn, changes.time) if options.change_feed else None
        for part in added_parts(changes):
            csn, file, partition = split_path(part.path)
            listed = {
                "part": part.part,
                "path": partition,
                "file": file,
                "rows": part.rows,
                "file_length": part.file_length,
            }
            for piece in pieces([listed], size):
                yield PieceSource(csn, piece, inserted)


def split_path(path: str) -> tuple[int, str, str]:
    """Return CSN, file and partition of `/snapshots/<csn>/<namespace>/<table>/...`."""
    _, _, csn, namespace, table, *inner = path.split("/")
    return int(csn), "/".join((namespace, table, *inner)), "/".join(inner[:-1])
