"""Scans of system tables: their rows as Arrow, a bounded number of them in memory at a time."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.replica_agent.sql.scan import Scanned, all_of, matching, mentioned_in
from tidelock.replica_agent.system_tables.definition import Column, Slice, SystemTable, View, batch_of


class SystemSource(msgspec.Struct, frozen=True):
    """The rows of a system table for scans.

    Attributes:
        table: Its definition.
        view: Opens the catalog for a scan, in any thread.
        live: The rows that only the agent knows, with all columns.
        failed: Called with the error of a scan, since DuckDB passes on its text only.
    """

    table: SystemTable
    view: Callable[[], contextlib.AbstractContextManager[View]]
    live: pa.Table
    failed: Callable[[Exception], None]


class SystemDataset(Scanned):
    """The rows of a system table."""

    def __init__(self, source: SystemSource) -> None:
        super().__init__(source.table.arrow, functools.partial(_Scan, source))


class _Scan:
    """One scan; DuckDB calls :meth:`to_reader` once."""

    def __init__(self, source: SystemSource, columns: Sequence[str], condition: Any) -> None:
        self._source, self._condition = source, condition
        arrow = source.table.arrow
        self.projected_schema = pa.schema([arrow.field(name) for name in columns])
        self._mentioned = mentioned_in(condition, arrow.names)
        self._columns = [
            column for column in source.table.columns if column.name in {*columns, *self._mentioned}
        ]

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._source.live.to_batches():
                yield self._wanted(batch)
            with self._source.view() as view:
                for one in self._slices(view):
                    yield from self._slice(view, one)
        except Exception as error:
            self._source.failed(error)
            raise

    def _slices(self, view: View) -> Sequence[Slice]:
        """Return the slices that may have a row where the condition is true."""
        slices = [*self._source.table.slices(view)]
        known = {*slices[0].equal, *slices[0].between} if slices else set()
        if not known & self._mentioned:
            return slices
        arrow = self._source.table.arrow
        guarantees = [_known(one, arrow) for one in slices]
        return [slices[number] for number in matching(guarantees, self._condition, arrow)]

    def _slice(self, view: View, one: Slice) -> Iterator[pa.RecordBatch]:
        for rows in one.batches(self._columns):
            if one.reads is not None:
                # After the read: while the CSN is promised, no row of it leaves the catalog.
                view.reader.require_kept(view.csn, one.reads)
            yield self._wanted(_batch(rows, self._columns))

    def _wanted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found = batch if self._condition is None else batch.filter(self._condition)
        return found.select(self.projected_schema.names)


def _batch(rows: Sequence[tuple[Any, ...]], columns: Sequence[Column]) -> pa.RecordBatch:
    """Return rows of the wanted columns; of no column there is still the number of rows."""
    if columns:
        return batch_of(rows, columns)
    return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))


def _known(one: Slice, arrow: pa.Schema) -> Any:
    """Return an expression that is true for all rows of a slice."""
    return all_of(
        [
            *(
                pc.field(name) == pa.scalar(value, arrow.field(name).type)
                for name, value in one.equal.items()
            ),
            *(
                (pc.field(name) >= pa.scalar(low, arrow.field(name).type))
                & (pc.field(name) <= pa.scalar(high, arrow.field(name).type))
                for name, (low, high) in one.between.items()
            ),
        ]
    )
