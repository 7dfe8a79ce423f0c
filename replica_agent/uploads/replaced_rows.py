"""The count of rows when a job has replaced parts: none may be lost or doubled. Pure."""

from __future__ import annotations

from tidelock.csnlog.core.ids import TableId
from tidelock.errors import CorruptError
from tidelock.wire.statements import RowChanges


def require_all_rows(table: TableId, taken: int, changed: RowChanges, found: int) -> None:
    """Require that files have all rows of the parts that they replace, but for those that were changed.

    Args:
        table: The table, for messages.
        taken: The number of rows in these parts.
        changed: The numbers of rows that the job was to delete, update and insert.
        found: The number of rows in its files.

    Raises:
        CorruptError: They have more or fewer rows, or the numbers cannot be true.
    """
    expected = taken - changed.rows_deleted + changed.rows_inserted
    touched = changed.rows_deleted + changed.rows_updated
    least = min(changed.rows_deleted, changed.rows_updated, changed.rows_inserted)
    if found == expected and touched <= taken and least >= 0:
        return
    raise CorruptError(
        f"the job was to replace {taken} rows of table {table}, to delete {changed.rows_deleted} and "
        f"update {changed.rows_updated} of them, and to insert {changed.rows_inserted}: {expected} rows; its "
        f"files have {found}. Roll back. A condition or a source that gives other rows each time it is read "
        "does this: write the source to a table first",
        table=table,
        expected=expected,
        found=found,
    )
