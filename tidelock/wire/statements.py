"""Bodies of the statements of a transaction, and of their answers. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


class Literal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A new value that is not SQL: a JSON value, cast to the type of its column.

    Attributes:
        value: The value; dates, times and decimals are text.
        base64: Whether the value is the base64 text of bytes.
    """

    value: bool | int | float | str | None
    base64: bool = False


#: A new value of a column: SQL, or a literal.
Value = str | Literal


class PartitionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of drop_partition: each partition column with its value, null as null."""

    partition: dict[str, Any]


class MoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of move_partition: the partition, and the table that receives it."""

    partition: dict[str, Any]
    into: str


class PastPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A point of the past: exactly one of these.

    Attributes:
        csn: This CSN.
        tag: The CSN of this tag.
        at_ms: The newest CSN whose effective time is not after this (Unix, ms).
    """

    csn: int | None = None
    tag: str | None = None
    at_ms: int | None = None


class RestoreRequest(PastPoint, frozen=True, forbid_unknown_fields=True):
    """Body of restore: the point as at which a table becomes again.

    Attributes:
        partition: One partition alone: each partition column with its value; default: the whole table.
    """

    partition: dict[str, Any] | None = None


class RestoreResult(msgspec.Struct, frozen=True):
    """The changes of a restore.

    Attributes:
        csn: The table is as it was there.
        rows_removed: Rows of the parts that have left the table.
        parts_removed: Their number.
        rows_restored: Rows of the parts that have come back.
        parts_restored: Their number.
    """

    csn: int
    rows_removed: int
    parts_removed: int
    rows_restored: int
    parts_restored: int


class DeleteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of delete.

    Attributes:
        where: A condition in SQL; rows for which it is null remain.
        params: Values of its `?`.
    """

    where: str
    params: list[Any] = []


class UpdateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of update.

    Attributes:
        set: New values by column.
        where: A condition in SQL; null: all rows.
        params: Parameters of `set` in their order, then those of `where`.
    """

    set: dict[str, Value]
    where: str | None = None
    params: list[Any] = []


class MergeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The work of a merge, as JSON in its query string.

    Attributes:
        on: Columns of the key.
        when_matched_update: New values by column; true: the values of the given rows.
        when_matched_delete: Matching rows are deleted where this condition is true.
        when_not_matched_insert: Values of new rows; true: all columns of the table.
        params: Parameters of the update, of the delete, and of the insert, in this order.
    """

    on: list[str]
    when_matched_update: dict[str, Value] | bool = False
    when_matched_delete: str | None = None
    when_not_matched_insert: dict[str, Value] | bool = False
    params: list[Any] = []


class ReplaceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /transactions/{tid}/replace/{table}.

    Attributes:
        files: Names of files in the folder of the table at the snapshot of the transaction, without the
            folders of partitions.
    """

    files: list[str] = []


class ReplacedPart(msgspec.Struct, frozen=True):
    """A part whose rows a job of the client replaces.

    Attributes:
        file: Its path below the folder of the table.
        rows: Number of its rows.
        csn: A CSN at which that folder has it.
    """

    file: str
    rows: int
    csn: int


class Replacement(msgspec.Struct, frozen=True):
    """The parts that were taken out of a table, and the number of their rows."""

    parts: list[ReplacedPart]
    rows: int


class RowChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /transactions/{tid}/replaced/{table}: what a job has changed.

    Attributes:
        rows_deleted: Rows of the parts that were taken, and that its files do not have.
        rows_updated: Rows of these parts that its files have with new values.
        rows_inserted: Rows of its files that were in no part before.
    """

    rows_deleted: int = 0
    rows_updated: int = 0
    rows_inserted: int = 0


class InsertResult(msgspec.Struct, frozen=True):
    """Number of rows that an insert staged, and of the parts that hold them."""

    rows: int
    parts: int


class RemoveResult(msgspec.Struct, frozen=True):
    """Number of rows that a statement removed from a table, and of the parts that held them."""

    rows: int
    parts: int


class ChangeResult(msgspec.Struct, frozen=True):
    """Numbers of rows and parts that a statement changed.

    Attributes:
        rows_deleted: Rows that are not in the table any more.
        rows_updated: Rows with new values.
        rows_inserted: Rows that were not in the table before.
        parts_removed: Parts that held such rows.
        parts_added: Parts that hold the new rows, and the remaining rows of the removed parts.
    """

    rows_deleted: int = 0
    rows_updated: int = 0
    rows_inserted: int = 0
    parts_removed: int = 0
    parts_added: int = 0
