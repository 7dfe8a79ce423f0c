"""The rule of faults that act together: the two promises, and nothing else, limit it."""

from __future__ import annotations

from typing import Any, Final

import pytest

from chaos.faults.fault import Aim
from chaos.planning.tolerance import Act, Shape, choices, demands_commits, refusal, well

THREE: Final = Shape(("r1", "r2", "r3"), ("z1", "z2", "z3"), 2)
FIVE: Final = Shape(("r1", "r2", "r3", "r4", "r5"), ("z1", "z2", "z3"), 2)


def one(kind: str, *targets: str, aim: Aim = Aim.REPLICA, **traits: Any) -> Act:
    """Return a fault that acts."""
    return Act(kind, aim, targets, **traits)


KILLED: Final = one("killed", "r1")
FROZEN: Final = one("frozen", "r2")
CLOCK: Final = one("clock wrong", "r3", harms=False)
SERVER: Final = one("server killed", "z1", aim=Aim.ZOOKEEPER)
LOST: Final = one("disk lost", "r1", loses_disk=True)


@pytest.mark.parametrize(
    ("shape", "acts", "fresh", "why"),
    [
        (THREE, [KILLED], FROZEN, "fewer than 2 replicas would be well"),
        (FIVE, [KILLED, FROZEN, one("stopped", "r3")], one("slow", "r4"), "fewer than 2 replicas"),
        (THREE, [SERVER], one("server frozen", "z2", aim=Aim.ZOOKEEPER), "no majority of ZooKeeper"),
        (THREE, [SERVER], one("leader", "z2", aim=Aim.ZOOKEEPER, harms=False), "no majority of ZooKeeper"),
        (FIVE, [LOST], one("disk replaced", "r2", loses_disk=True), "a commit might lose its last copy"),
        (Shape(("r1",), ("z1",), 1), [], one("killed", "r1"), "fewer than 1 replicas"),
        (Shape(("r1", "r2"), ("z1",), 1), [], LOST, "a commit might lose its last copy"),
        (FIVE, [KILLED], one("killed", "r2"), "killed acts"),
        (FIVE, [KILLED], one("clock wrong", "r1", harms=False), "r1 is the target of another fault"),
        (FIVE, [KILLED], one("member added", aim=Aim.ALL, harms=False, alone=True), "member added is alone"),
        (FIVE, [one("member added", aim=Aim.ALL, harms=False, alone=True)], KILLED, "member added is alone"),
        (THREE, [KILLED], one("cut", "r2", "r3", aim=Aim.PAIR), "fewer than 2 replicas"),
        (THREE, [KILLED], one("rolling restart", "r1", "r2", "r3", aim=Aim.ALL), "touches every replica"),
        (THREE, [], one("killed", "r9"), "r9: not all of them are there"),
        (THREE, [LOST], one("majority lost", aim=Aim.ALL, halts=True), "no disk is lost"),
        (
            THREE,
            [one("majority lost", aim=Aim.ALL, halts=True)],
            one("hung", aim=Aim.ALL, halts=True),
            "one fault at a time",
        ),
        (THREE, [one("majority lost", aim=Aim.ALL, halts=True)], SERVER, "is not beside a fault that halts"),
    ],
)
def test_what_asks_for_more_than_is_promised_is_refused(
    shape: Shape, acts: list[Act], fresh: Act, why: str
) -> None:
    """Each rule refuses, and says why."""
    assert why in (refusal(shape, acts, fresh) or "")


@pytest.mark.parametrize(
    ("shape", "acts", "fresh"),
    [
        (THREE, [], KILLED),
        (THREE, [KILLED], CLOCK),
        (THREE, [KILLED, CLOCK], SERVER),
        (THREE, [], one("cut", "r1", "r2", aim=Aim.PAIR)),
        (FIVE, [KILLED, FROZEN], one("stopped", "r3")),
        (FIVE, [LOST], one("killed", "r2")),
        (THREE, [], one("rolling restart", "r1", "r2", "r3", aim=Aim.ALL)),
        (THREE, [KILLED], one("majority lost", aim=Aim.ALL, halts=True)),
        (THREE, [one("majority lost", aim=Aim.ALL, halts=True), KILLED], FROZEN),
    ],
)
def test_what_is_promised_to_be_survived_may_act_together(shape: Shape, acts: list[Act], fresh: Act) -> None:
    """Faults are combined up to the limit: also all replicas may suffer while nothing can commit."""
    assert refusal(shape, acts, fresh) is None


def test_two_replicas_that_are_cut_from_each_other_commit_by_the_third() -> None:
    """Each has the copies that it needs there; without the third one neither has."""
    cut = one("cut", "r1", "r2", aim=Aim.PAIR)
    assert well(THREE, [cut]) == {"r1", "r2", "r3"}
    assert well(THREE, [cut, one("killed", "r3")]) == set()


def test_commits_are_not_demanded_without_copies_or_majority() -> None:
    """They are as long as `copies` replicas are well and a majority of ZooKeeper is there."""
    assert demands_commits(THREE, [KILLED, SERVER])
    assert not demands_commits(THREE, [KILLED, FROZEN])
    assert not demands_commits(THREE, [one("majority lost", aim=Aim.ALL, harms=False, halts=True)])
    assert not demands_commits(THREE, [one("rolling restart", "r1", "r2", "r3", aim=Aim.ALL)])


@pytest.mark.parametrize(
    ("aim", "count", "first"),
    [
        (Aim.REPLICA, 3, ("r1",)),
        (Aim.PAIR, 6, ("r1", "r2")),
        (Aim.ZOOKEEPER, 3, ("z1",)),
        (Aim.ALL, 1, (*THREE.replicas, *THREE.zookeepers)),
        (Aim.CLIENT, 1, ()),
    ],
)
def test_an_aim_has_all_its_targets(aim: Aim, count: int, first: tuple[str, ...]) -> None:
    """A pair is ordered, since a cut may be one way."""
    found = choices(THREE, aim)
    assert (len(found), found[0]) == (count, first)
