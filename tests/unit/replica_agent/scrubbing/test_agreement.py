"""A replica is wrong if a majority of all members shows something else; otherwise nobody knows."""

from __future__ import annotations

import pytest

from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId
from tidelock.replica_agent.scrubbing.agreement import Disagreement, disagreement
from tidelock.wire.peers import StateDigest

T, U = TableId("default.t"), TableId("default.u")


def digest(
    replica: str, shown: str, *, csn: int = 7, form: int = 1, zxid: int = 9, **tables: str
) -> StateDigest:
    """The digest of a replica that shows this in `default.t`."""
    found = {T: shown} | {TableId(f"default.{name}"): text for name, text in tables.items()}
    return StateDigest(ReplicaId(replica), Csn(csn), form, zxid, found)


def judged(own: StateDigest, *others: StateDigest, members: int = 3) -> Disagreement | None:
    """The judgement of a replica."""
    return disagreement(own, others, members)


@pytest.mark.parametrize(
    "others",
    [
        [],
        [digest("r2", "a")],
        [digest("r2", "a"), digest("r3", "a")],
        # These say nothing: another CSN, another way of counting, another record at the CSN.
        [digest("r2", "b", csn=8), digest("r3", "b", csn=8)],
        [digest("r2", "b", form=2), digest("r3", "b", form=2)],
        [digest("r2", "b", zxid=8), digest("r3", "b", zxid=8)],
    ],
)
def test_replicas_with_equal_digests_agree(others: list[StateDigest]) -> None:
    """An answer that cannot be compared is left out."""
    assert judged(digest("r1", "a"), *others) is None


def test_a_majority_of_the_members_decides() -> None:
    """The replica hears which tables differ, and from whom."""
    found = judged(digest("r1", "a", u="x"), digest("r2", "b", u="x"), digest("r3", "b", u="x"))
    assert found == Disagreement(Csn(7), (T,), (ReplicaId("r2"), ReplicaId("r3")), outvoted=True)
    assert str(found) == "at CSN 7 the parts of default.t are not those that r2, r3 show"


@pytest.mark.parametrize(
    ("others", "members"),
    [
        ([digest("r2", "b")], 2),  # one against one
        ([digest("r2", "b")], 3),  # the third is silent
        ([digest("r2", "b"), digest("r3", "a")], 3),  # the other one is wrong
        ([digest("r2", "b"), digest("r3", "c")], 3),  # all differ
        ([digest("r2", "b"), digest("r3", "b"), digest("r4", "a")], 4),  # two against two
        ([digest("r2", "b"), digest("r3", "b")], 5),  # two are silent
    ],
)
def test_less_than_a_majority_decides_nothing(others: list[StateDigest], members: int) -> None:
    """It is known that they differ, and not who is wrong."""
    found = judged(digest("r1", "a"), *others, members=members)
    assert found is not None
    assert not found.outvoted


def test_tables_that_one_side_lacks_differ() -> None:
    """A table that is missing here, and one that is missing there."""
    mine = StateDigest(ReplicaId("r1"), Csn(7), 1, 9, {T: "a"})
    theirs = StateDigest(ReplicaId("r2"), Csn(7), 1, 9, {U: "a"})
    found = judged(mine, theirs)
    assert found is not None
    assert found.tables == (T, U)
    assert str(found).endswith("the parts of default.t, default.u are not those that r2 shows")


def test_a_message_names_a_few_tables() -> None:
    """A catalog may be wrong in thousands of them."""
    many = [TableId(f"default.t{number}") for number in range(20)]
    mine, theirs = (
        StateDigest(ReplicaId(replica), Csn(7), 1, 9, dict.fromkeys(many, shown))
        for replica, shown in (("r1", "a"), ("r2", "b"))
    )
    found = judged(mine, theirs)
    assert "and 15 more" in str(found)
