"""Requests for changes by a SQL process: statements that remove, rewrite or derive rows of one table.

A mutation is answered in two steps. The first answer is :class:`Affected`: the parts that lose or change
rows, so that the agent can lock them before a row is produced. The second is the rows that replace theirs, as
an Arrow IPC stream with all columns of the table in its types. The expressions of a mutation are SQL of the
user, one expression each (:mod:`tidelock.replica_agent.sql.expressions`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.csnlog.core.model import Definition
from tidelock.part_layout import NO_FLOATS, FloatColumns
from tidelock.wire.statements import Value


class DeleteRows(msgspec.Struct, frozen=True, tag="delete"):
    """Delete the rows where ``where`` is true (NULL is not)."""

    where: str
    params: tuple[Any, ...] = ()


class UpdateRows(msgspec.Struct, frozen=True, tag="update"):
    """Give columns new values in the rows where ``where`` is true; None means all rows.

    In ``params`` the values for ``set`` come before the values for ``where``.
    """

    set: dict[str, Value]
    where: str | None = None
    params: tuple[Any, ...] = ()


class RewriteRows(msgspec.Struct, frozen=True, tag="rewrite"):
    """Write all rows again, in the types that the columns have now, and with generated columns."""


class MergeRows(msgspec.Struct, frozen=True, tag="merge"):
    """Merge source rows into the table, by equality of columns; NULL equals no value.

    In expressions the table is ``target`` and the source rows are ``source``.

    Attributes:
        source: Path of a file with an Arrow IPC stream.
        on: The columns of the key, which both sides have.
        update: New values of rows that match; True: every column of the source. False: they stay.
        delete: Matching rows for which this is true are deleted instead.
        insert: Values of source rows without a match (omitted columns are null); True: all columns of the
            table are in the source. False: no row is inserted.
        upsert: The source has exactly the columns of the table, and no key twice.
        unique: For an insert into a table that is unique by ``on``. "refuse": keys that are in the table, or
            are repeated, are an error; "replace": the last row of each key counts.
        params: The values for ``update``, then ``delete``, then ``insert``.
    """

    source: str
    on: tuple[str, ...]
    update: dict[str, Value] | bool = False
    delete: str | None = None
    insert: dict[str, Value] | bool = False
    upsert: bool = False
    unique: Literal["refuse", "replace"] | None = None
    params: tuple[Any, ...] = ()


class InsertRows(msgspec.Struct, frozen=True, tag="insert"):
    """Return source rows as rows of the table, with the values of its generated columns.

    Attributes:
        source: Path of a file with an Arrow IPC stream. It may lack columns that have a default or are
            generated.
    """

    source: str


class CompareKeys(msgspec.Struct, frozen=True, tag="keys"):
    """Compare the keys of staged rows with each other and with those of the table; no row is added.

    Attributes:
        on: The columns of the unique key.
        parts: The parts of the rows; the table is seen without them.
        taken: Parts that they replace, removed already: the keys of their rows are not new, and are compared
            with each other alone.
        replace: Rows of the table that have one of the keys are deleted; otherwise such keys are an error.
    """

    on: tuple[str, ...]
    parts: tuple[PartId, ...]
    taken: tuple[PartId, ...] = ()
    replace: bool = False


class CompactParts(msgspec.Struct, frozen=True, tag="compact"):
    """Return the rows of some parts, sorted in the order of the table; no row is lost or added."""

    parts: tuple[PartId, ...]


class DerivedRows(msgspec.Struct, frozen=True, tag="derived"):
    """Return the rows of a SELECT, as rows of the table; no row is removed.

    Attributes:
        sql: One SELECT (or WITH, VALUES, FROM).
        params: Its parameters.
        columns: Names of its columns by position, other columns become null; None: the SELECT names them.
        source: Table of which the view ``inserted`` shows ``parts``, or None.
        parts: Parts of ``source``, committed, or of the transaction.
    """

    sql: str
    params: tuple[Any, ...] = ()
    columns: tuple[str, ...] | None = None
    source: TableId | None = None
    parts: tuple[PartId, ...] = ()


class CheckRows(msgspec.Struct, frozen=True, tag="check"):
    """Require that rows do not break conditions of the table; no row is removed or returned.

    Attributes:
        conditions: The names of the conditions (:attr:`TableSchema.conditions`).
        parts: The parts of the rows, committed, or of the transaction; none: the conditions are only bound to
            the columns of the table.
    """

    conditions: tuple[str, ...]
    parts: tuple[PartId, ...] = ()


Action = (
    DeleteRows
    | UpdateRows
    | RewriteRows
    | MergeRows
    | InsertRows
    | CompareKeys
    | CompactParts
    | DerivedRows
    | CheckRows
)


class MutationRequest(msgspec.Struct, frozen=True, tag="mutation"):
    """One change of one table.

    Attributes:
        csn: The snapshot that it reads.
        tid: Transaction whose own uncommitted parts it sees too, or None.
        table: The table that loses or gains the rows.
        action: The change to make.
        adopted: Merges above the snapshot that the transaction has adopted, as textual tids.
        defined: The definitions of the transaction, which are not committed, in their order.
    """

    csn: Csn
    tid: str | None
    table: TableId
    action: Action
    adopted: tuple[str, ...] = ()
    defined: tuple[Definition, ...] = ()


class Affected(msgspec.Struct, frozen=True):
    """The effects of a mutation, known before its first row.

    Attributes:
        table: The table that gains the rows.
        parts: Parts that lose or change rows: all of their other rows are in the stream that follows, or in
            row groups of ``kept``.
        rows_matched: Rows of these parts that are deleted or updated, as counted in the search for parts.
        rows_to_insert: Rows of a merge's source without a match; rows whose keys are compared.
        keys: Smallest and largest value of their first column of ``on`` (integers; dates as days and
            timestamps as microseconds since 1970; text; booleans; decimals as text); None for other types and
            without rows.
        kept: Row groups without such rows, by part: they stay as they are.
        floats: Those of the rows that a compaction streams.
    """

    table: TableId
    parts: tuple[PartId, ...] = ()
    rows_matched: int = 0
    rows_to_insert: int = 0
    keys: tuple[Any, Any] | None = None
    kept: dict[PartId, tuple[int, ...]] = {}
    floats: FloatColumns = NO_FLOATS


class MutationResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The report at the end of a statement.

    Attributes:
        reads: The tables that it has read: None = the whole table, a list = all but these partitions (paths),
            which their values excluded. Partitions that are added later count as read.
        rows_deleted: Matching rows without a successor in the stream.
        rows_updated: Streamed rows with new values.
        rows_inserted: Streamed rows that were in no part before.
        checked: The names of the columns that each condition reads, by the name of the condition.
    """

    reads: dict[TableId, list[str] | None] = {}
    rows_deleted: int = 0
    rows_updated: int = 0
    rows_inserted: int = 0
    checked: dict[str, tuple[str, ...]] = {}

    def read_set(self) -> dict[TableId, frozenset[str] | None]:
        """Return :attr:`reads` as a transaction keeps it."""
        return {table: None if paths is None else frozenset(paths) for table, paths in self.reads.items()}
