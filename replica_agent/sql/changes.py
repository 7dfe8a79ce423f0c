"""The changed rows of a table in a SQL process: commit by commit, as an Arrow stream.

For each CSN, the deleted rows are the rows of the removed parts minus the rows of the added parts, and the
inserted rows the reverse, as bags: each row counts as often as it occurs. A row is identified by its values,
nulls included, and floating-point numbers are compared by their bits. Rows of different partitions are
different. So if a commit only adds to a partition, or only removes from it, the partition's parts are
streamed unchanged; otherwise the engine counts the rows of both sides, which spills. In a table with a unique
key (which contains the partition columns) a key on both sides is an update.

All rows that a CSN takes away come before all that it brings, so that a consumer can apply rows by key as
they come. So there are two passes over each commit. If rows are counted in several partitions, each pass
counts them again: there may be room for the counts of one partition only.

The net difference of two CSNs is told as if one commit had added and removed the parts of all commits in
between. So it costs what these commits have changed, not what the table holds. Compactions count only if a
column was dropped and came back: then rows that they have written in between lack its values.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from tidelock.csnlog.core.ids import Csn
from tidelock.parquet_leaves import has_floats
from tidelock.replica_agent.sql import composition
from tidelock.replica_agent.sql.request import ChangesRequest
from tidelock.replica_agent.sql.scan import BATCH_BYTES, BATCH_ROWS, SnapshotTable, TableSource
from tidelock.replica_agent.sql.session import SqlSession
from tidelock.replica_agent.storage.change_reads import ChangeReader
from tidelock.replica_agent.storage.change_sets import CsnChangePage, CsnChanges, PartChange, net_of
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.tables.column_changes import in_type
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.tables.widening import is_wider

#: Columns in addition to the table's columns; no table has columns of these names.
ADDED: Final = pa.schema(
    [
        pa.field("_change_type", pa.string()),
        pa.field("_commit_csn", pa.int64()),
        pa.field("_commit_time", pa.timestamp("us", tz="UTC")),
    ]
)
#: Bytes of parts do not bound a page here: rows are streamed.
_ANY_BYTES = 1 << 62


class ChangedRows:
    """The changed rows of one request; :meth:`SqlSession.translate` explains its errors.

    Raises:
        UnknownTableError: The table does not exist at the CSN of its columns.
    """

    def __init__(self, session: SqlSession, request: ChangesRequest) -> None:
        self._session, self._request = session, request
        session.reads_from(request.table, request.since)
        self._row = session.table(request.table)
        self._table = TableSchema.from_definition(self._row.id, self._row.definition)
        if self._row.from_csn > request.since:
            self._table = _in_widest_types(self._table, self._earlier())
            self._row = replace(self._row, definition=self._table.definition())
        columns = [column.with_nullable(True) for column in self._table.arrow]
        #: The columns of the table, each nullable as in any result, and :data:`ADDED`.
        self.schema = pa.schema([*columns, *ADDED])

    def _earlier(self) -> list[TableSchema]:
        """Return the definitions since the first CSN before that of the last one."""
        table, since = self._row.id, self._request.since
        with closing(self._session.catalog()) as reader:
            tables = Tables(reader)
            found = [schema for _, schema in tables.changes(table, since, Csn(self._row.from_csn - 1))]
            return found if tables.version(table, since) is None else [tables.schema(table, since)[1], *found]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes in the order of their CSNs; of one CSN the deletes and preimages first.

        Raises:
            SnapshotTooOldError: The horizon of the table has passed changes that were not read yet.
        """
        if self._request.net:
            yield from self._changes(net_of(self._pages()))
            return
        for page in self._pages():
            for one in page.sets:
                yield from self._changes(one)

    def _pages(self) -> Iterator[CsnChangePage]:
        since, complete = self._request.since, False
        while not complete:
            page = self._page(since)
            yield page
            since, complete = page.to, page.complete

    def _page(self, since: Csn) -> CsnChangePage:
        request = self._request
        with closing(ChangeReader(self._session.data_dir)) as reader:
            return reader.page(
                request.table,
                since,
                request.csn if request.until is None else request.until,
                files_max=request.files_max,
                bytes_max=_ANY_BYTES,
                merges=request.net and self._came_back(),
            )

    def _came_back(self) -> bool:
        """Return whether a column that the table has at the end was away for some of the CSNs."""
        return any(
            former.name is None and former.until > self._request.since
            for column in self._table.columns
            for former in column.was
        )

    def _changes(self, one: CsnChanges) -> Iterator[pa.RecordBatch]:
        partitions = list(_by_partition(one))
        counted = sum(1 for removed, added in partitions if removed and added)
        for gone, kind in ((True, composition.DELETE), (False, composition.INSERT)):
            for removed, added in partitions:
                if removed and added:
                    if gone or counted > 1:
                        self._count(removed, added)
                    yield from self._counted(one, gone=gone)
                elif parts := removed if gone else added:
                    for batch in SnapshotTable(self._source(parts)).scanner().to_reader():
                        yield self._batch(one, [*batch.columns, pa.repeat(kind, batch.num_rows)])

    def _count(self, removed: Sequence[PartChange], added: Sequence[PartChange]) -> None:
        """Store the rows whose counts on both sides differ."""
        for name, parts in ((composition.BEFORE, removed), (composition.AFTER, added)):
            self._session.view(name, replace(self._source(parts), bits=True))
        self._session.run(composition.keep_net(self._table.arrow.names))

    def _counted(self, one: CsnChanges, *, gone: bool) -> Iterator[pa.RecordBatch]:
        """Yield the stored rows that the commit takes away, or those that it brings."""
        statement = composition.differences(self._table.arrow.names, self._table.unique_key, gone=gone)
        for found in self._session.rows(statement):
            *columns, counts = found.columns
            rows = pa.RecordBatch.from_arrays(columns, names=found.schema.names[:-1])
            for batch in _repeated(rows, counts):
                yield self._batch(one, batch.columns)

    def _batch(self, one: CsnChanges, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return rows as the client receives them; the input has their kind behind their columns."""
        commit = (one.csn, 1000 * one.time_ms)
        constants = [
            pa.repeat(pa.scalar(value, field.type), len(columns[-1]))
            for value, field in zip(commit, list(ADDED)[1:], strict=True)
        ]
        arrays = [
            column.view(field.type) if has_floats(field.type) else column  # some columns hold bits
            for column, field in zip([*columns, *constants], self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _source(self, parts: Sequence[PartChange]) -> TableSource:
        rows = [part.row for part in parts]
        return self._session.source(self._row, lambda: rows)


def _in_widest_types(table: TableSchema, earlier: Iterable[TableSchema]) -> TableSchema:
    """Return a table whose columns hold all values that they had: a restore may take wider types back."""
    types = {column.id: column.type for column in table.columns}
    for column in itertools.chain.from_iterable(schema.columns for schema in earlier):
        if column.id in types and is_wider(column.type, types[column.id]):
            types[column.id] = column.type
    return dataclasses.replace(
        table, columns=tuple(in_type(column, types[column.id]) for column in table.columns)
    )


def _by_partition(one: CsnChanges) -> Iterator[tuple[list[PartChange], list[PartChange]]]:
    """Yield the removed and the added parts of each partition."""
    sides: dict[str, tuple[list[PartChange], list[PartChange]]] = defaultdict(lambda: ([], []))
    for side, parts in enumerate((one.removed, one.added)):
        for part in parts:
            sides[part.row.path][side].append(part)
    for path in sorted(sides):
        yield sides[path]


def _repeated(rows: pa.RecordBatch, counts: pa.Array) -> Iterator[pa.RecordBatch]:
    """Yield each row as often as its count says, in batches of bounded size."""
    while rows.num_rows:
        room = min(BATCH_ROWS // rows.num_rows, BATCH_BYTES // max(rows.nbytes, 1))
        times = max(1, min(pc.min(counts).as_py(), room))
        yield rows if times == 1 else _joined([rows] * times)
        counts = pc.subtract(counts, times)
        left = pc.greater(counts, 0)
        rows, counts = rows.filter(left), counts.filter(left)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch
