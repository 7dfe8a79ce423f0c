"""Streaming reads: the rows that commits add to a table, or its change feed.

The reader is made three times: for the checks when the query starts, in the process beside the driver that
follows the table (`follower`), and, pickled, in each task. Only the second one connects to anything.
"""

from __future__ import annotations

import os
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
from tidelock.spark.source.clusters import connected
from tidelock.spark.source.feed_columns import Inserted, marked, require_feed, with_feed, without_feed
from tidelock.spark.source.files import SnapshotFiles
from tidelock.spark.source.follower import Batch, TableTailer
from tidelock.spark.source.links import link
from tidelock.spark.source.patience import patiently
from tidelock.spark.source.pieces import Piece, groups, pieces
from tidelock.spark.source.reading import Way, way_to
from tidelock.spark.source.rows import Columns, columns_of, rows_of, shaped
from tidelock.spark.source.stream_offsets import Limits, Position, added_parts
from tidelock.spark.source.stream_options import ReadStreamOptions, read_stream_options


@dataclass(frozen=True, slots=True)
class Source:
    """Rows of a piece of a part: the CSN at which its file is read, and what the change feed says of them."""

    csn: int
    piece: Piece
    inserted: Inserted | None


class Added(InputPartition):
    """What one task reads of parts that were added."""

    def __init__(self, way: Way, columns: Columns, sources: Sequence[Source]) -> None:
        super().__init__(None)
        self.way, self.columns, self.sources = way, columns, sources


class Changed(InputPartition):
    """The changes of one commit that has removed rows: agents find out which."""

    def __init__(self, csn: int) -> None:
        super().__init__(None)
        self.csn = csn


def stream_schema(options: ReadStreamOptions) -> StructType:
    """Return the columns that a stream has by itself; errors as `Database.table` and `tidelock.connect`."""
    with connected(options.target) as db:
        table = struct_of(db.table(options.target.table))
    return with_feed(table) if options.change_feed else table


class TidelockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a table as a stream.

    Args:
        given: The options as they were given: the secret of the environment does not travel.
        schema: What is wanted of the table, and of the columns of its change feed.

    Raises:
        BadRequestError: An option is wrong.
        SchemaMismatchError: A column of the change feed is wanted that is not read, or as something else.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(given)
        self._schema = schema
        options = self._options()
        problems = require_feed(schema)
        if not options.change_feed and len(without_feed(schema)) != len(schema):
            problems.append("the columns of the change feed come with option readChangeFeed")
        if problems:
            raise SchemaMismatchError(f"the schema does not fit the stream: {'; '.join(problems)}")
        self._follower: TableTailer | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Go to tasks without the secret, unless they are to ask agents what has changed."""
        given = self._given
        if not self._options().change_feed:
            given = {name: value for name, value in given.items() if name.lower() != "token"}
        return {"_given": given, "_schema": self._schema, "_follower": None}

    def _options(self) -> ReadStreamOptions:
        return read_stream_options(self._given, os.environ)

    def _following(self) -> TableTailer:
        if self._follower is None:
            self._follower = TableTailer(self._options())
        return self._follower

    # -- beside the driver ----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - PySpark's name
        """Return where a new query begins."""
        return self._following().begin().offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        """Return the limit that the options set; of two the second is looked up when it is applied."""
        options = self._options()
        if options.files_max is not None:
            return ReadMaxFiles(options.files_max)
        return ReadAllAvailable() if options.bytes_max is None else ReadMaxBytes(options.bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        """End where the table is now."""
        self._following().stop_at_newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - PySpark's name
        """Return how far the next batch goes; waits a moment where there is nothing to be read."""
        return self._following().advance(Position.parse(start), self._limits(limit)).offset()

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - PySpark's name
        """Return how far the table is known, for the progress of the query."""
        newest = self._following().newest
        return None if newest is None else {"csn": newest}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        if start == end:
            return []
        follower = self._following()
        batch = follower.plan(Position.parse(start), Position.parse(end))
        options = self._options()
        changed = [Changed(one.csn) for one in batch.sets if one.removed] if options.change_feed else []
        sources = list(_sources(batch, options))
        if not sources:
            return changed
        way = way_to(follower.status(), options.target, failover=options.failover)
        columns = columns_of(follower.definition(), without_feed(self._schema))
        by_piece = {source.piece: source for source in sources}
        return [
            *changed,
            *(
                Added(
                    way,
                    columns,
                    sorted((by_piece[piece] for piece in group), key=lambda source: source.csn),
                )
                for group in groups(by_piece, options.partition_bytes)
            ),
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """What lies before an offset is not asked for again."""
        self._following().release(Position.parse(end))

    def stop(self) -> None:
        """The query has ended."""
        if self._follower is not None:
            self._follower.close()

    def _limits(self, limit: ReadLimit) -> Limits:
        options = self._options()
        match limit:
            case ReadMaxFiles(files_max):
                return Limits(files_max, options.bytes_max)
            case ReadMaxBytes(bytes_max):
                return Limits(None, bytes_max)
            case _:
                return Limits()

    # -- in tasks -------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task is to read; raises rather than give fewer rows."""
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
            at = None
            for source in task.sources:
                if files is None or at != source.csn:
                    stack.close()
                    files = task.way.files(source.csn)
                    stack.callback(files.close)
                    at = source.csn
                for batch in rows_of(files, source.piece, task.columns):
                    yield marked(batch, wanted, source.inserted)

    def _changed(self, csn: int) -> Iterator[pa.RecordBatch]:
        options, wanted = self._options(), self._wanted()
        target = replace(options.target, replica=None) if options.failover else options.target
        db = link(target)

        def begin() -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]:
            # What the follower has pinned it gives up when the batch is committed.
            batches = db.changes(target.table, csn - 1, csn, pinned=True).to_batches()
            return list(islice(batches, 1)), batches

        head, rest = patiently(begin)
        for batch in chain(head, rest):
            yield shaped(batch, wanted)


def _sources(batch: Batch, options: ReadStreamOptions) -> Iterator[Source]:
    """Cut the parts of a batch into pieces for tasks."""
    size = options.partition_bytes
    mark = Inserted(batch.csn, None) if options.change_feed else None
    for piece in pieces(batch.first, size):
        yield Source(batch.csn, piece, mark)
    for one in batch.sets:
        if options.change_feed and one.removed:
            continue
        mark = Inserted(one.csn, one.time) if options.change_feed else None
        for part in added_parts(one):
            csn, file, partition = located(part.path)
            listed = {
                "part": part.part,
                "path": partition,
                "file": file,
                "rows": part.rows,
                "length": part.length,
            }
            for piece in pieces([listed], size):
                yield Source(csn, piece, mark)


def located(path: str) -> tuple[int, str, str]:
    """Return the CSN of `/snapshots/<csn>/<namespace>/<table>/...`, the file below it, and its partition."""
    _, _, csn, namespace, table, *inner = path.split("/")
    return int(csn), "/".join((namespace, table, *inner)), "/".join(inner[:-1])
