"""The form of a system table: its name, its columns with their meaning, and where its rows come from."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.replica_agent.storage.table_reads import TableRow
from tidelock.replica_agent.system_tables.catalog_rows import SystemReader
from tidelock.replica_agent.system_tables.live import LiveSource

#: Rows that are in memory at a time while a table is read.
BATCH_ROWS: Final = 8 * 1024

TEXT: Final = pa.string()
COUNT: Final = pa.int64()
FLAG: Final = pa.bool_()
SECONDS: Final = pa.float64()
TIME: Final = pa.timestamp("us", "UTC")
TEXTS: Final = pa.list_(pa.string())
PROPERTIES: Final = pa.map_(pa.string(), pa.string())


class Place(enum.Enum):
    """Whose rows a table has."""

    #: The same on every replica that has applied the CSN of the query.
    CLUSTER = "cluster"
    #: Those of the replica that answers.
    REPLICA = "replica"


class Moment(enum.Enum):
    """The time that a table shows."""

    #: The CSN of the query.
    CSN = "csn"
    #: The moment of the query, whatever its CSN is.
    NOW = "now"


class Column(msgspec.Struct, frozen=True):
    """A column of a system table.

    Attributes:
        name: Its name.
        type: Its type.
        doc: Its meaning, for the documentation.
        sql: Its value as an expression over the rows of a :class:`Query`; empty for other tables.
    """

    name: str
    type: pa.DataType
    doc: str
    sql: str = ""


#: Rows as tuples, in the order of the columns that were asked for; a bounded number of them at a time.
Batches = Iterator[Sequence[tuple[Any, ...]]]


class View(msgspec.Struct, frozen=True):
    """The catalog as a query sees it.

    Attributes:
        reader: The catalog.
        csn: The CSN of the query.
        tables: The tables that can be read at this CSN.
        own: The transaction whose own changes it sees too, or None.
        adopted: The merges above the CSN that this transaction has adopted.
    """

    reader: SystemReader
    csn: Csn
    tables: Sequence[TableRow]
    own: str | None = None
    adopted: tuple[str, ...] = ()


class Slice(msgspec.Struct, frozen=True):
    """Some rows of a system table. A slice without a row that a query wants is not read.

    Attributes:
        batches: Returns the rows with these columns; called at most once.
        equal: The values that all its rows have in some columns.
        between: The smallest and the largest value that a row may have in some columns.
        reads: The user's table whose history has to be kept while the rows are read; None: no such table.
    """

    batches: Callable[[Sequence[Column]], Batches]
    equal: Mapping[str, Any] = {}
    between: Mapping[str, tuple[Any, Any]] = {}
    reads: TableId | None = None


def _no_slices(_: View) -> Iterable[Slice]:
    return ()


class SystemTable(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of a system table. Its rows are those of its slices, and the live ones.

    Attributes:
        name: Its name in the namespace `system`.
        doc: What a row is, in one or two sentences.
        place: Whose rows it has.
        moment: The time that it shows.
        columns: Its columns.
        cost: How the cost of reading it grows.
        slices: Returns its rows from the catalog, in a SQL process.
        live: Returns rows that only the agent knows, with all columns; None: there are none.
    """

    name: str
    doc: str
    place: Place
    moment: Moment
    columns: tuple[Column, ...]
    cost: str
    slices: Callable[[View], Iterable[Slice]] = _no_slices
    live: Callable[[LiveSource], Awaitable[Sequence[tuple[Any, ...]]]] | None = None

    @property
    def arrow(self) -> pa.Schema:
        """Its columns in Arrow."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])


def selected(
    source: str, args: Mapping[str, Any], reader: SystemReader
) -> Callable[[Sequence[Column]], Batches]:
    """Return the rows of a slice whose columns are expressions of SQL.

    Args:
        source: What follows FROM.
        args: Values for its parameters.
        reader: The catalog.
    """

    def batches(columns: Sequence[Column]) -> Batches:
        return reader.selected([column.sql for column in columns], source, args, BATCH_ROWS)

    return batches


def made(
    rows: Callable[[frozenset[str]], Iterable[Mapping[str, Any]]],
) -> Callable[[Sequence[Column]], Batches]:
    """Return the rows of a slice that a function makes, given the names of the columns that are wanted."""

    def batches(columns: Sequence[Column]) -> Batches:
        names = [column.name for column in columns]
        collected: list[tuple[Any, ...]] = []
        for row in rows(frozenset(names)):
            collected.append(tuple(row[name] for name in names))
            if len(collected) == BATCH_ROWS:
                yield collected
                collected = []
        if collected:
            yield collected

    return batches


def batch_of(rows: Sequence[tuple[Any, ...]], columns: Sequence[Column]) -> pa.RecordBatch:
    """Return rows as a record batch."""
    values = zip(*rows, strict=True) if rows else ([] for _ in columns)
    arrays = [_array([*found], column.type) for found, column in zip(values, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, [column.name for column in columns])


def _array(values: list[Any], arrow: pa.DataType) -> pa.Array:
    """Return values as an array; SQLite has no booleans."""
    if arrow == FLAG:
        values = [None if value is None else bool(value) for value in values]
    return pa.array(values, arrow)
