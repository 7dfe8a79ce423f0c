"""Faults that act, each with its lines in the journal, and what is wrong with one that does not."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from chaos.faults.fault import Aim, Fault, NotPossibleError, Proof
from chaos.faults.signs import Signs
from chaos.injector import Injector
from chaos.planning.plan import Plan, Step
from chaos.reading.bands import bands
from chaos.record.journal import Journal, load
from chaos.record.violations import Violations
from chaos.world import World
from tests.unit.chaos.told_cluster import ToldCluster, told_cluster
from tidelock.errors import UnavailableError


class Seen(Fault):
    """A fault whose effect is seen at once."""

    kind = "seen"
    aim = Aim.REPLICA

    @contextlib.contextmanager
    def inject(  # noqa: D102
        self, world: World, targets: Sequence[str], chosen: random.Random
    ) -> Iterator[Proof]:
        del world, chosen
        yield Signs(lambda: f"{targets[0]} was hurt")


class Unseen(Seen):
    """A fault without effect."""

    kind = "unseen"

    @contextlib.contextmanager
    def inject(  # noqa: D102
        self, world: World, targets: Sequence[str], chosen: random.Random
    ) -> Iterator[Proof]:
        del world, targets, chosen
        yield Signs(lambda: None)


class Unhealed(Seen):
    """A fault that cannot be healed."""

    kind = "unhealed"

    @contextlib.contextmanager
    def inject(  # noqa: D102
        self, world: World, targets: Sequence[str], chosen: random.Random
    ) -> Iterator[Proof]:
        del world, chosen
        yield Signs(lambda: "hurt")
        raise UnavailableError(f"{targets[0]} does not start")


class Idle(Seen):
    """A fault that finds nothing to harm."""

    kind = "idle"

    @contextlib.contextmanager
    def inject(  # noqa: D102
        self, world: World, targets: Sequence[str], chosen: random.Random
    ) -> Iterator[Proof]:
        if targets:
            raise NotPossibleError("nothing is there")
        yield Signs()


class Replacing(Seen):
    """A member is replaced by another one."""

    kind = "replacing"

    @contextlib.contextmanager
    def inject(  # noqa: D102
        self, world: World, targets: Sequence[str], chosen: random.Random
    ) -> Iterator[Proof]:
        del chosen
        cluster = cast("ToldCluster", world.cluster)
        cluster.replicas = [*(one for one in cluster.replicas if one != targets[0]), "r4"]
        cluster.told["r4"] = cluster.told.pop(targets[0])
        yield Signs(lambda: "replaced")


class Losing(Seen):
    """A disk is lost."""

    kind = "losing"
    loses_disk = True


KINDS = {fault.kind: fault for fault in (Seen, Unseen, Unhealed, Idle, Replacing, Losing)}


@pytest.fixture
def cluster() -> Iterator[ToldCluster]:
    """Three replicas that serve."""
    with told_cluster() as found:
        yield found


def inject(
    cluster: ToldCluster, folder: Path, *steps: tuple[str, str], minutes: float = 0.02
) -> tuple[list[dict[str, Any]], list[str]]:
    """Run a plan with these kinds and targets; return the lines of the journal, and the claims violated."""
    planned = tuple(
        Step(number, 0.0, 0.05, kind, (target,), 1) for number, (kind, target) in enumerate(steps, 1)
    )
    with Journal(folder / "journal.jsonl") as journal:
        world = World(cast("Any", cluster), folder, journal, 1, 2, 15.0)
        violations = Violations(journal)
        Injector(world, Plan(1, minutes, steps=planned), KINDS, violations).run()
    return list(load(folder / "journal.jsonl")), [one.claim for one in violations.found]


def test_a_fault_begins_acts_is_proven_ends_and_is_well(cluster: ToldCluster, tmp_path: Path) -> None:
    """Its lines have its number; the proof is written once."""
    lines, claims = inject(cluster, tmp_path, ("seen", "r1"))
    assert [line["what"] for line in lines] == ["begin", "acting", "proof", "end", "well"]
    assert (lines[0]["kind"], lines[0]["targets"], lines[2]["proof"]) == ("seen", ["r1"], "r1 was hurt")
    assert {line["fault"] for line in lines} == {1}
    assert claims == []


def test_a_fault_that_nothing_proves_fails_the_run(cluster: ToldCluster, tmp_path: Path) -> None:
    """It is healed all the same."""
    lines, claims = inject(cluster, tmp_path, ("unseen", "r1"))
    assert claims == ["a fault has an effect"]
    assert lines[-1]["what"] == "well"


def test_a_fault_that_is_not_healed_fails_the_run(cluster: ToldCluster, tmp_path: Path) -> None:
    """The violation has the error, and the number of the fault."""
    lines, claims = inject(cluster, tmp_path, ("unhealed", "r1"))
    assert claims == ["a fault is injected and healed"]
    [told] = [line for line in lines if line["what"] == "violation"]
    assert told["fault"] == [1]
    assert "r1 does not start" in told["story"]


def test_a_fault_that_finds_nothing_to_harm_is_left_out(cluster: ToldCluster, tmp_path: Path) -> None:
    """It is no fault of the run, and no band of its journal."""
    lines, claims = inject(cluster, tmp_path, ("idle", "r1"))
    assert [line["what"] for line in lines] == ["begin", "spared"]
    assert (claims, bands(lines)) == ([], [])


def test_a_fault_beyond_tolerance_is_left_out(cluster: ToldCluster, tmp_path: Path) -> None:
    """It waits for its turn until the time is over; the ones behind it have the same fate."""
    lines, claims = inject(cluster, tmp_path, ("seen", "r1"), ("seen", "r9"), ("unseen", "r2"))
    spared = {line["fault"]: line["why"] for line in lines if line["what"] == "spared"}
    assert spared == {2: "a target is no member any more", 3: "the time of the faults was over"}
    assert claims == []


@pytest.mark.slow
def test_a_new_member_stands_for_the_one_that_left(cluster: ToldCluster, tmp_path: Path) -> None:
    """Later faults that were planned for the old one are aimed at the new one."""
    lines, claims = inject(cluster, tmp_path, ("replacing", "r2"), ("seen", "r2"), minutes=0.1)
    begins = [line["targets"] for line in lines if line["what"] == "begin"]
    assert begins == [["r2"], ["r4"]]
    assert [line["replicas"] for line in lines if line["what"] == "members"] == [["r1", "r3", "r4"]]
    assert claims == []


def test_a_disk_is_lost_only_if_others_have_all_commits(cluster: ToldCluster, tmp_path: Path) -> None:
    """A replica that is behind is no copy."""
    cluster.told["r3"]["snapshot_csn"] = 6
    lines, _ = inject(cluster, tmp_path, ("losing", "r1"))
    [spared] = lines
    assert "not all that is committed is on 2 others: {'r3': 'is at CSN 6 and not at 7" in spared["why"]
