"""The digest of a state shows each change of what readers see, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.replicas.audited import TABLE, AuditedReplica, tid
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId
from tidelock.csnlog.core.model import ChangeTable
from tidelock.errors import SnapshotTooOldError, UnavailableError
from tidelock.replica_agent.scrubbing.state_digest import state_digest


def shown(replica: AuditedReplica, csn: int = 5, name: str = "r1") -> dict[TableId, str]:
    """The digests of the tables at a CSN."""
    return dict(state_digest(replica.path, ReplicaId(name), Csn(csn)).tables)


async def test_replicas_with_other_places_on_the_disk_agree(
    replica: AuditedReplica, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Paths, offsets, and whether a part is held have nothing to do with what is shown."""
    before = shown(replica)
    replica.sql("UPDATE parts SET file = NULL, offset = 9, blocks = NULL, state = 'wanted' WHERE rows = 1")
    assert shown(replica, name="r2") == before
    other = AuditedReplica(tmp_path_factory.mktemp("other"))
    await other.fill()
    await other.close()
    assert shown(other) == before


async def test_definitions_that_one_commit_has_superseded_do_not_count(replica: AuditedReplica) -> None:
    """A table that was created and renamed in one transaction: replicas forget the first name at any time."""
    definition = {"name": TABLE, "columns": [], "partition_by": [], "sort_by": [], "properties": {}}
    both = [ChangeTable(TableId("default.u"), version, definition) for version in (0, 1)]
    await replica.commit(6, tid(6), both)
    before = shown(replica, 6)
    replica.sql("DELETE FROM tables WHERE id = 'default.u' AND version = 0")
    assert shown(replica, 6) == before
    replica.sql("UPDATE tables SET version = 2 WHERE id = 'default.u'")
    assert shown(replica, 6) != before


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE parts SET rows = rows + 1 WHERE part = 'r1-1-40'",
        "UPDATE parts SET checksum = 'x' WHERE part = 'r1-1-40'",
        "UPDATE parts SET length = length + 1 WHERE part = 'r1-1-50'",
        "UPDATE parts SET path = 'p=1' WHERE part = 'r1-1-31'",
        "UPDATE parts SET creation_csn = creation_csn - 1 WHERE part = 'r1-1-50'",
        "UPDATE parts SET removal_csn = 5, removal_tid = 'x' WHERE part = 'r1-1-50'",
        "UPDATE parts SET removal_csn = NULL, removal_tid = NULL WHERE part = 'r1-1-30'",
        "UPDATE parts SET table_name = 'default.other' WHERE part = 'r1-1-50'",
        "DELETE FROM parts WHERE part = 'r1-1-50'",
        "UPDATE parts SET columns_csn = 2 WHERE part = 'r1-1-50'",
        "UPDATE parts SET path = CAST(x'70ff' AS TEXT) WHERE part = 'r1-1-50'",
        "UPDATE parts SET table_name = CAST(x'70ff' AS TEXT) WHERE part = 'r1-1-50'",
        "UPDATE tables SET version = version + 1",
        "DELETE FROM tables",
    ],
)
async def test_a_change_of_what_is_shown_is_seen(replica: AuditedReplica, change: str) -> None:
    """A row that was lost, doubled or changed, and a definition that was."""
    before = shown(replica)
    replica.sql(change)
    assert shown(replica) != before


async def test_the_past_is_compared_as_it_was(replica: AuditedReplica) -> None:
    """A part that is removed later is shown, and one that is made later is not."""
    at_3, at_5 = shown(replica, 3), shown(replica, 5)
    assert at_3[TABLE] != at_5[TABLE]
    replica.sql("DELETE FROM parts WHERE creation_csn = 5")
    assert shown(replica, 3) == at_3
    assert shown(replica, 5) != at_5


async def test_a_csn_whose_rows_may_be_missing_has_no_digest(replica: AuditedReplica) -> None:
    """Below the horizon rows are collected; above the applied CSN they are not there yet."""
    replica.sql("UPDATE meta SET value = 4 WHERE key = 'horizon'")
    assert shown(replica, 4)
    with pytest.raises(SnapshotTooOldError, match="below the horizon 4"):
        shown(replica, 3)
    with pytest.raises(UnavailableError, match="not applied here yet"):
        shown(replica, 6)


async def test_the_record_at_the_csn_is_told(replica: AuditedReplica) -> None:
    """Replicas of another history of the log are not compared: the follower finds that out."""
    assert state_digest(replica.path, ReplicaId("r1"), Csn(5)).zxid == 0
    replica.sql("UPDATE csns SET czxid = 77 WHERE csn = 5")
    assert state_digest(replica.path, ReplicaId("r1"), Csn(5)).zxid == 77


def test_a_folder_without_a_catalog_is_an_error(tmp_path: Path) -> None:
    """It is never taken for an empty state."""
    with pytest.raises(Exception, match="unable to open"):
        state_digest(tmp_path, ReplicaId("r1"), Csn(1))
