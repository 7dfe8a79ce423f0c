"""Plans: drawn from a seed, even, combined, within tolerance, and kept as text."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from chaos import faults
from chaos.faults.fault import Fault
from chaos.faults.processes.frozen import Frozen
from chaos.faults.processes.killed import Killed
from chaos.faults.zookeeper.zookeeper_leader_killed import ZooKeeperLeaderKilled
from chaos.planning.plan import Plan, Step, draw, enabled
from chaos.planning.tolerance import Act, refusal

HOUR: Final = Plan(seed=7, minutes=60.0)
ALL: Final = enabled(faults.ALL, "processes")


def act_of(step: Step) -> Act:
    """Return what a step does."""
    return Act.of(next(fault for fault in faults.ALL if fault.kind == step.kind), step.targets)


def test_the_same_seed_draws_the_same_plan() -> None:
    """Another seed draws another one."""
    assert draw(HOUR, ALL) == draw(HOUR, ALL)
    assert draw(HOUR, ALL).steps != draw(replace(HOUR, seed=8), ALL).steps


@pytest.mark.parametrize("replicas", [3, 5])
def test_an_hour_has_300_faults_and_every_kind_as_often(replicas: int) -> None:
    """No kind comes twice more often than another one; there are 14 kinds at least."""
    times = Counter(step.kind for step in draw(replace(HOUR, replicas=replicas), ALL).steps)
    assert times.pop("ZooKeeper set back") == 1
    assert sum(times.values()) >= 300
    assert times.keys() == {fault.kind for fault in ALL if not fault.last}
    assert len(times) >= 14
    assert max(times.values()) - min(times.values()) <= 2


@pytest.mark.parametrize("seed", range(5))
def test_faults_that_overlap_are_within_tolerance(seed: int) -> None:
    """By the lengths that the plan has; whatever takes longer to heal is a matter of the run."""
    plan = draw(replace(HOUR, seed=seed, replicas=4), ALL)
    for number, step in enumerate(plan.steps):
        before = [act_of(other) for other in plan.steps[:number] if other.at_s + other.length_s > step.at_s]
        assert refusal(plan.shape, before, act_of(step)) is None


@pytest.mark.parametrize(("replicas", "share"), [(3, 0.1), (5, 0.5)])
def test_faults_are_combined_with_each_other(replicas: int, share: float) -> None:
    """So many faults begin while another one acts; three replicas of two copies bear little at a time."""
    steps = draw(replace(HOUR, replicas=replicas), ALL).steps
    beside = sum(
        any(other.at_s + other.length_s > step.at_s for other in steps[:number])
        for number, step in enumerate(steps)
    )
    assert beside >= share * len(steps)


def test_every_fault_is_over_by_the_end() -> None:
    """Steps are numbered from 1 in the order of their begins, and last as long as their kind may."""
    lasts = {fault.kind: fault.lasts_s for fault in ALL}
    steps = draw(replace(HOUR, minutes=3.0), ALL).steps
    assert [step.number for step in steps] == [*range(1, len(steps) + 1)]
    assert all(one.at_s <= two.at_s for one, two in itertools.pairwise(steps))
    for step in steps:
        assert step.at_s + step.length_s <= 180.0
        assert lasts[step.kind][0] <= step.length_s <= lasts[step.kind][1]


def test_a_fault_that_ends_a_run_is_the_last_one() -> None:
    """Nothing acts beside it, and it is over by the end."""
    *others, last = draw(replace(HOUR, minutes=3.0), ALL).steps
    assert last.kind == "ZooKeeper set back"
    assert all(step.at_s + step.length_s <= last.at_s for step in others)
    assert last.at_s + last.length_s <= 180.0


def test_a_plan_is_read_back_from_its_text() -> None:
    """Its text has a line for each fault; without a fault it is a plan as well."""
    plan = draw(replace(HOUR, minutes=3.0, workloads=("bank",), plant="torn-snapshot"), ALL)
    assert Plan.from_json(plan.to_json()) == plan
    assert len(plan.to_json().splitlines()) == len(plan.steps) + 2
    assert Plan.from_json(HOUR.to_json()) == HOUR
    with pytest.raises(KeyError):
        Plan.from_json("{}")


def test_kinds_are_chosen_by_name_and_place() -> None:
    """A name that does not exist is told, and so is a choice that leaves nothing."""

    class Inside(Killed):
        kind = "inside"
        places = frozenset({"containers"})

    several: list[type[Fault]] = [Killed, Frozen, Inside]
    assert enabled(several, "processes") == [Killed, Frozen]
    assert enabled(several, "containers", only=["inside", "killed"]) == [Killed, Inside]
    assert enabled(several, "containers", without=["inside"]) == [Killed, Frozen]
    with pytest.raises(ValueError, match="no such fault: kill; there are frozen, inside, killed"):
        enabled(several, "processes", only=["kill"])
    with pytest.raises(ValueError, match="no fault is left"):
        enabled(several, "processes", only=["inside"])


def test_what_a_cluster_cannot_bear_alone_is_not_drawn() -> None:
    """One server of ZooKeeper is a majority of one; a plan knows what it was drawn from."""
    plan = draw(replace(HOUR, minutes=3.0, zookeepers=1), [Killed, ZooKeeperLeaderKilled])
    assert {step.kind for step in plan.steps} == {"killed"} == {*plan.kinds}
    assert draw(replace(HOUR, zookeepers=1), [ZooKeeperLeaderKilled]).steps == ()
