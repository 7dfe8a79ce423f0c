"""The plan of a tree that is made again, by the facts of catalogs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId
from tidelock.csnlog.core.model import REMOVED, STOPPED, STRUCK, LabelState, SkippedRecord
from tidelock.errors import ClusterMismatchError, ConfigError
from tidelock.replica_agent.rebuilding.facts import CatalogFacts, UndecidedFacts
from tidelock.replica_agent.rebuilding.plan import doubts, newest, plan, require_one_history

R1, R2, R3, R4 = (ReplicaId(name) for name in ("r1", "r2", "r3", "r4"))
SETTINGS: Final[dict[str, Any]] = {
    "copies": 2,
    "epoch_limit": 100,
    "incarnation": "new",
    "time_ms": 5,
}


WORD = SkippedRecord(csn=Csn(4), zxid=104, digest="ab", by="ann", why="rolled back", time_ms=9)


def facts(replica: ReplicaId, csn: int, **others: Any) -> CatalogFacts:
    """Return the facts of a catalog that has applied the log up to a CSN."""
    found = CatalogFacts(
        folder=Path(replica),
        replica=replica,
        disk=f"disk of {replica}",
        cluster_id="c",
        incarnation="old",
        boot=3,
        csn=Csn(csn),
        time_ms=csn * 10,
        horizon=Csn(0),
        clone="",
        zxids={Csn(number): 100 + number for number in range(2, csn + 1)},
        boots={replica: 3},
        tables={},
        labels={},
        skips=(),
        skipped={},
        tags={},
        parts=0,
        part_bytes=0,
        lacking=(),
        outcomes=0,
        undecided=(),
    )
    return replace(found, **others)


def test_the_replica_that_has_applied_most_decides() -> None:
    """The others clone; all are named in the tree with the CSN that they have."""
    labels = {"job": LabelState("4-r1-1-1", None)}
    catalogs = [facts(R1, 7), facts(R2, 9, labels=labels), facts(R3, 9)]
    assert newest(catalogs).replica == R2
    tree = plan(catalogs, **SETTINGS)
    assert (tree.end, tree.labels, tree.home) == (Csn(9), labels, R2)
    states = {name: seat.session.state for name, seat in tree.seats.items()}
    assert states == {R1: STRUCK, R2: STOPPED, R3: STOPPED}
    assert tree.cluster.made_of == {"disk of r1": 7, "disk of r2": 9, "disk of r3": 9}
    assert (tree.cluster.cluster_id, tree.cluster.incarnation) == ("c", "new")


def test_words_about_skipped_records_go_into_the_tree() -> None:
    """Those of the newest catalog; one that is behind may not have got there."""
    assert plan([facts(R1, 3), facts(R2, 7, skipped={Csn(4): WORD})], **SETTINGS).skipped == (WORD,)


def test_boots_begin_above_all_that_are_named() -> None:
    """A boot that only another replica remembers counts; an id that was not given is removed for good."""
    catalogs = [facts(R1, 9, boots={R1: 3, R2: 8, R4: 2}), facts(R2, 9, boots={R2: 3, R4: 5})]
    tree = plan(catalogs, **SETTINGS)
    assert {name: seat.session.boot for name, seat in tree.seats.items()} == {R1: 3, R2: 8, R4: 5}
    assert tree.seats[R4].session.state == REMOVED
    assert doubts(catalogs, decided=(), held=()).absent == (R4,)


def test_horizon_is_the_largest() -> None:
    """A replica that has collected more cannot show what is below its horizon."""
    assert plan([facts(R1, 9, horizon=Csn(4)), facts(R2, 9)], **SETTINGS).horizon == 4


def test_horizon_is_never_behind_the_end_of_the_log() -> None:
    """A struck replica notes the present horizon at its start, before it has a clone that is as new."""
    one = facts(R1, 9, horizon=Csn(5000), clone="the log begins behind its position")
    assert plan([one, facts(R2, 7, horizon=Csn(3))], **SETTINGS).horizon == 9
    assert plan([replace(one, csn=Csn(2)), facts(R2, 7, horizon=Csn(3))], **SETTINGS).horizon == 3


def test_versions_of_tables_are_counted_from_the_first() -> None:
    """The version of a table is that of its znode; definitions that are forgotten are filled."""
    tables = {TableId("d.t"): {2: {"name": "two"}, 3: {"name": "three"}}}
    tree = plan([facts(R1, 9, tables=tables), facts(R2, 9)], **SETTINGS)
    names = [definition["name"] for definition in tree.tables[TableId("d.t")]]
    assert names == ["two", "two", "two", "three"]


def test_undecided_transactions_are_told_unless_the_newest_catalog_knows_them() -> None:
    """A replica that is behind does not know yet what the newest one has applied."""
    one, other = UndecidedFacts("4-r1-1-1", 3, ("d.t",)), UndecidedFacts("9-r1-1-2", 5, ("d.t",))
    catalogs = [facts(R1, 9, undecided=(other,)), facts(R2, 5, undecided=(one, other))]
    assert doubts(catalogs, decided={"4-r1-1-1"}, held=()).undecided == (other,)
    assert not doubts(catalogs, decided=(), held=()).suspect
    assert doubts(catalogs, decided=(), held=()).undecided == (one, other)


def test_a_catalog_that_was_to_be_replaced_is_told_where_it_serves() -> None:
    """A replica that is behind clones anyway; the others serve, and an operator has to know."""
    catalogs = [facts(R1, 9, clone="too late"), facts(R2, 7, clone="too late"), facts(R3, 9)]
    assert doubts(catalogs, decided=(), held=()).suspect == {R1: "too late"}


def test_parts_that_no_given_replica_holds_are_lost() -> None:
    """A replica that is behind and holds some gives them while it waits for its clone."""
    lacking = (PartId("r3-1-1"), PartId("r3-1-2"))
    catalogs = [facts(R1, 9, lacking=lacking), facts(R2, 7, lacking=(PartId("r3-1-9"),))]
    assert doubts(catalogs, decided=(), held=lacking[:1]).lost == lacking[1:]


@pytest.mark.parametrize(
    ("catalogs", "error", "words"),
    [
        ([], ConfigError, "at least one data directory"),
        ([facts(R1, 5), facts(R1, 7)], ConfigError, "one data directory of each replica"),
        ([facts(R1, 5), facts(R2, 7, cluster_id="x")], ClusterMismatchError, "one cluster"),
        ([facts(R1, 5), facts(R2, 7, incarnation="x")], ClusterMismatchError, "one incarnation"),
        (
            [facts(R1, 5), facts(R2, 7, zxids={Csn(4): 104, Csn(5): 9})],
            ClusterMismatchError,
            "different records from CSN 5 on",
        ),
        (
            [facts(R1, 5, skipped={Csn(4): WORD}), facts(R2, 7)],
            ClusterMismatchError,
            "has applied the record of CSN 4, which an operator has had skipped",
        ),
        (
            [facts(R1, 5), facts(R2, 7, skipped={Csn(4): WORD})],
            ClusterMismatchError,
            "has applied the record of CSN 4, which an operator has had skipped",
        ),
    ],
)
def test_catalogs_that_do_not_belong_together(
    catalogs: list[CatalogFacts], error: type[Exception], words: str
) -> None:
    """They are refused before anything is read further."""
    with pytest.raises(error, match=words):
        require_one_history(catalogs)


def test_fewer_replicas_than_copies() -> None:
    """No commit would be possible."""
    with pytest.raises(ConfigError, match="--copies"):
        plan([facts(R1, 9)], **SETTINGS)
