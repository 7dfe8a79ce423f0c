"""The count of rows when a job has replaced parts."""

from __future__ import annotations

import pytest

from tidelock.csnlog.core.ids import TableId
from tidelock.errors import CorruptError
from tidelock.replica_agent.uploads.replaced_rows import require_all_rows
from tidelock.wire.statements import RowChanges

TABLE = TableId("default.t")
TAKEN = 100


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (RowChanges(), 100),
        (RowChanges(rows_deleted=100), 0),
        (RowChanges(rows_deleted=40, rows_updated=60), 60),
        (RowChanges(rows_updated=100, rows_inserted=7), 107),
        (RowChanges(rows_deleted=3, rows_inserted=3), 100),
    ],
)
def test_files_with_all_other_rows_are_accepted(changes: RowChanges, found: int) -> None:
    """Deleted rows are left out, and inserted ones come in addition."""
    require_all_rows(TABLE, TAKEN, changes, found)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (RowChanges(), 99),
        (RowChanges(), 101),
        (RowChanges(rows_deleted=1), 100),
        (RowChanges(rows_inserted=1), 100),
        (RowChanges(rows_deleted=101, rows_inserted=1), 0),
        (RowChanges(rows_deleted=60, rows_updated=41), 40),
        (RowChanges(rows_deleted=-1), 101),
        (RowChanges(rows_inserted=-1), 99),
        (RowChanges(rows_updated=-1), 100),
    ],
)
def test_a_row_more_or_less_is_refused(changes: RowChanges, found: int) -> None:
    """So are numbers that cannot be true."""
    with pytest.raises(CorruptError, match=f"its files have {found}"):
        require_all_rows(TABLE, TAKEN, changes, found)
