"""The simulation tells the same of the same seed, and finds bugs that are planted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from tests.sim import machine, world
from tests.sim.__main__ import command
from tests.sim.bugs import BUGS
from tests.sim.demand import STUCK
from tests.sim.plan import PlannedFault, RunPlan, draw, end_on_a_full_disk
from tests.sim.shrink import shrink
from tests.sim.world import simulate

ROOT = Path(__file__).parents[2]

#: How many seeds the search for a planted bug may take.
FOUND_WITHIN = 10
_SMALL = RunPlan(seed=0, writers=4, readers=0, transactions=6)
#: One machine after the other loses its power.
_DARK = replace(
    _SMALL, faults=tuple(PlannedFault(5.0 + 5.0 * number, "power", number % 3, 1.0) for number in range(6))
)
#: All lose it at once, again and again.
_BLACKOUTS = replace(
    _SMALL,
    writers=8,
    transactions=12,
    faults=tuple(
        PlannedFault(4.0 + 4.0 * number, "power", target, 1.0) for number in range(8) for target in range(3)
    ),
)
#: Homes die while ZooKeeper loses their requests.
_LANDING = replace(
    _SMALL,
    writers=1,
    transactions=16,
    landers=6,
    requests=0.04,
    request_kinds=("REQUEST_LOST", "EXPIRED"),
    # Rows wait for their commit for milliseconds: only many kills meet some of them.
    faults=tuple(PlannedFault(3.0 + 1.3 * number, "kill", number % 3, 0.6) for number in range(24)),
)
#: Everything that removes, with short history.
_REMOVING = RunPlan(
    seed=0, writers=0, readers=0, changers=4, transactions=16, compaction=True, history_s=1.0, log_keep=1
)
#: Many change the same few tables, while ZooKeeper answers late.
_DEFINING = replace(
    _SMALL,
    writers=0,
    definers=12,
    transactions=12,
    faults=tuple(PlannedFault(4.0 + 8.0 * n, "slow_zookeeper", n % 3, 6.0) for n in range(4)),
)
#: The third replica lives and cannot apply for most of the run.
_STUCK = tuple(
    replace(_SMALL, tight=True, transactions=12, faults=(PlannedFault(3.0, kind, 2, 34.0),))
    for kind in sorted(STUCK)
)
#: A replica hears no peer from its registration on.
_GROWING = replace(
    _SMALL,
    tight=True,
    transactions=24,
    faults=(PlannedFault(8.0, "add", 0), PlannedFault(8.15, "deaf", 3, 12.0)),
)
#: Two of four replicas leave, one after the other, while the other two hear nothing.
_LEAVING = replace(
    _SMALL,
    replicas=4,
    writers=6,
    transactions=16,
    faults=(
        *(PlannedFault(5.0, "deaf", target, 15.0) for target in (0, 1)),
        *(PlannedFault(at_s, "remove", 2) for at_s in (6.0, 11.0)),
    ),
)
#: The other two leave while two clones fetch their parts over slow networks.
_FETCHING = replace(
    _SMALL,
    replicas=4,
    writers=6,
    transactions=16,
    tight=True,
    history_s=1.0,
    faults=(
        *(PlannedFault(8.0, "replace", target, 0.2) for target in (0, 3)),
        *(PlannedFault(9.0, "slow", target, 26.0) for target in (0, 3)),
        *(PlannedFault(at_s, "remove", 1) for at_s in (12.0, 14.0, 16.0, 18.0)),
    ),
)
#: Each home is frozen while commits wait for slow answers of ZooKeeper: for a bit less than its session
#: lives, and its fence is raised meanwhile.
_FENCED_ASLEEP = replace(
    _SMALL,
    writers=16,
    transactions=40,
    faults=tuple(
        fault
        for number in range(6)
        for fault in (
            PlannedFault(2.0 + 6.0 * number, "slow_zookeeper", number % 3, 5.97),
            PlannedFault(4.0 + 6.0 * number, "freeze", number % 3, 3.96),
            PlannedFault(4.05 + 6.0 * number, "fence", number % 3),
        )
    ),
)
#: Plans in which a planted bug shows: the fault that it needs, at times that fit. The rest is chance.
SHOWN_BY = {
    "acknowledge-before-durable": _SMALL,
    "apply-over-a-gap": replace(
        _SMALL, faults=(PlannedFault(5.0, "deaf", 0, 8.0), PlannedFault(20.0, "deaf", 1, 8.0))
    ),
    "count-a-replaced-disk": replace(
        _SMALL,
        copies=3,
        writers=8,
        transactions=12,
        # The new disk is registered when the session of the life before has ended. The third replica comes
        # back after that, and before the commits that wait for it give up.
        faults=tuple(
            fault
            for at_s in (4.0, 16.0, 28.0)
            for fault in (PlannedFault(at_s, "kill", 2, 5.8), PlannedFault(at_s + 1.5, "replace", 1, 0.2))
        ),
    ),
    "forget-to-fsync": replace(
        _SMALL, faults=(PlannedFault(10.0, "power", 0, 1.0), PlannedFault(20.0, "power", 1, 1.0))
    ),
    "publish-what-is-not-durable": _DARK,
    "forget-what-packs-say": _BLACKOUTS,
    "collect-by-creation": replace(_REMOVING, readers=2),
    "look-before-locking": replace(_REMOVING, seed=3),
    "keep-marks-of-what-is-rolled-back": replace(_REMOVING, replicas=2, transactions=8),
    "compact-without-locks": replace(_REMOVING, seed=1, changers=6),
    "adopt-every-merge": replace(_REMOVING, seed=3, changers=6, transactions=24),
    "ignore-open-transactions": _REMOVING,
    "delete-locks-by-their-own-version": replace(
        _REMOVING,
        changers=6,
        faults=tuple(PlannedFault(2.0 + 12.0 * number, "zookeeper", number, 10.0) for number in range(3)),
    ),
    "serve-before-it-is-where-it-was": RunPlan(
        seed=0,
        writers=2,
        readers=1,
        transactions=12,
        manifests=True,
        tight=True,
        twice=0.2,
        late=0.05,
        changers=3,
        compaction=True,
        log_keep=1,
        # The new disk has applied a part of the log when it has waited for long enough.
        faults=(
            PlannedFault(8.0, "replace", 1, 2.0),
            PlannedFault(21.1, "mute", 2, 4.0),
            PlannedFault(22.0, "replace", 1, 2.0),
            PlannedFault(25.3, "slow", 2, 12.0),
        ),
    ),
    "call-aborted-what-no-home-answers-for": replace(
        _SMALL,
        writers=8,
        transactions=20,
        loss=0.2,
        faults=(PlannedFault(4.0, "deaf", 0, 8.0), PlannedFault(14.0, "deaf", 1, 8.0)),
    ),
    "take-a-tid-whose-outcome-was-told": replace(
        _SMALL, whole=1.0, writers=8, transactions=40, loss=0.2, twice=0.5, late=0.3
    ),
    "carry-the-rows-of-a-rider-that-left": replace(_SMALL, whole=1.0, crowd=8),
    "drop-what-has-landed": _LANDING,
    "rescue-without-a-label": _LANDING,
    "answer-landings-before-they-are-durable": _LANDING,
    "count-a-stuck-replica": _STUCK[sorted(STUCK).index("full")],
    "commit-whatever-the-fence": _FENCED_ASLEEP,
    "await-no-missing-part": replace(_SMALL, faults=(PlannedFault(5.0, "deaf", 0, 8.0),)),
    "clean-up-although-cancelled": replace(
        _REMOVING,
        faults=tuple(
            chain(*(end_on_a_full_disk(PlannedFault(at_s, "stop", 0)) for at_s in (8.0, 18.0, 28.0)))
        ),
    ),
    "the-clock-of-the-home-alone": replace(
        _SMALL, faults=tuple(PlannedFault(5.0 * n, "skew", n % 3, 3.0) for n in range(1, 6))
    ),
    "forget-by-the-wall-clock": replace(
        _SMALL, faults=tuple(PlannedFault(5.0 * n, "skew", n % 3, 3.0) for n in range(1, 6))
    ),
    # The third replica is struck while it is down: others collect what it does not know to be removed.
    "merge-a-manifest": replace(
        _REMOVING, faults=(PlannedFault(6.0, "kill", 2, 24.0), PlannedFault(8.0, "strike", 2))
    ),
    "take-a-clone-that-fetches-for-a-whole-one": _FETCHING,
    "leave-before-others-have-all": _LEAVING,
    "lower-copies-when-a-replica-leaves": replace(
        _SMALL, replicas=2, faults=tuple(PlannedFault(at_s, "remove", 1) for at_s in (6.0, 18.0, 30.0))
    ),
    # Two replicas come back after the accident and go on in the older log; two come later, with commits that
    # it does not know.
    "compare-no-stamp": replace(
        _SMALL,
        seed=3,
        replicas=4,
        writers=8,
        transactions=30,
        faults=(
            *(PlannedFault(13.0, "kill", target, 3.5) for target in (1, 2)),
            PlannedFault(14.0, "set_back", 0, 1.2),
            *(PlannedFault(15.1, "kill", target, 6.0) for target in (0, 3)),
        ),
    ),
    "define-at-any-time": _DEFINING,
    "insert-whatever-was-defined": _DEFINING,
    "drop-a-table-and-not-its-parts": replace(_DEFINING, history_s=1.0),
    "send-again-what-may-have-landed": replace(_SMALL, requests=0.05, request_kinds=("REPLY_LOST",)),
}
#: Bugs that take long to show, some of them after the time in which a shard has to come to rest. They say
#: how sharp the simulation is, so a long run is enough; that each can be planted is in every test run.
LONG = frozenset(
    {
        "adopt-every-merge",
        "answer-landings-before-they-are-durable",
        "call-aborted-what-no-home-answers-for",
        "carry-the-rows-of-a-rider-that-left",
        "clean-up-although-cancelled",
        "commit-whatever-the-fence",
        "compact-without-locks",
        "compare-no-stamp",
        "drop-a-table-and-not-its-parts",
        "drop-what-has-landed",
        "forget-what-packs-say",
        "keep-marks-of-what-is-rolled-back",
        "look-before-locking",
        "rescue-without-a-label",
        "send-again-what-may-have-landed",
        "serve-before-it-is-where-it-was",
        "take-a-clone-that-fetches-for-a-whole-one",
        "take-a-tid-whose-outcome-was-told",
    }
)


@pytest.mark.parametrize("plan", _STUCK, ids=sorted(STUCK))
@pytest.mark.few(1)
def test_commits_go_on_while_a_replica_is_stuck(plan: RunPlan) -> None:
    """Two of three replicas are well and two copies are enough: no commit is refused (I14)."""
    found = simulate(plan)
    assert not found.violations, f"{command(plan)}: {found.violations}"


def test_a_run_that_does_not_come_to_its_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has all violations that were found before the horizon."""
    monkeypatch.setattr(world, "HORIZON_S", 3.0)
    monkeypatch.delattr(machine.SimSecrets, "token_bytes")  # no agent can start
    told = [str(violation) for violation in simulate(_SMALL).violations]
    assert any("unforeseen in the start of" in what for what in told), told
    assert any("virtual time" in what for what in told), told


@pytest.mark.slow
def test_the_same_seed_is_the_same_run() -> None:
    """The trace is the same in another process, whose sets have other orders."""
    plan = draw(3)
    trace = simulate(plan).trace
    words = [sys.executable, *command(plan).split()[1:]]
    told = subprocess.run(
        words,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"^trace (\w+)", told.stdout, re.MULTILINE)[1] == trace  # type: ignore[index]


def test_the_folder_of_a_run_that_was_ended_is_swept(tmp_path: Path) -> None:
    """The next run removes it; that of a run that goes on stays."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = tmp_path / f"tidelock-sim-{ended.pid}-left" / "r1d1"
    left.mkdir(parents=True)
    mine = tmp_path / f"tidelock-sim-{os.getpid()}-mine"
    mine.mkdir()
    world.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [mine]


def _bugs() -> list[object]:
    return [pytest.param(bug, marks=pytest.mark.slow if bug in LONG else ()) for bug in BUGS]


def _is_found(bug: str, plan: RunPlan) -> bool:
    plans = (replace(plan, seed=plan.seed + number) for number in range(FOUND_WITHIN))
    return any(simulate(plan, around=BUGS[bug], brief=True).violations for plan in plans)


@pytest.mark.scenario("S81")
@pytest.mark.parametrize("bug", _bugs())
@pytest.mark.few(9)
def test_a_planted_bug_is_found(bug: str) -> None:
    """Each within a few seeds."""
    assert _is_found(bug, SHOWN_BY[bug])


def test_nothing_is_lost_when_all_lose_their_power_at_once() -> None:
    """Catalogs go back, and packs give the parts again that only they know (rule write-behind)."""
    found = simulate(_BLACKOUTS, brief=True, keep_trace=True)
    assert not found.violations
    assert sum("catalog cut" in line for line in found.lines) > 3


def test_a_registered_replica_that_serves_at_once_is_found() -> None:
    """It must not serve below its registration, as one with a new disk must not serve where it is."""
    assert _is_found("serve-before-it-is-where-it-was", _GROWING)


def test_a_machine_that_breaks_an_invariant_stops_its_agent_with_its_story() -> None:
    """The agent stops at once (I15), and its log has the steps up to the contradiction."""
    bug = "await-no-missing-part"
    found = simulate(SHOWN_BY[bug], around=BUGS[bug], brief=True, keep_trace=True)
    assert {violation.invariant for violation in found.violations} == {"I15 FAILSTOP"}
    [broken, *_] = [line for line in found.lines if "'machine_broken'" in line]
    assert "'machine': 'Prefix'" in broken
    assert "awaited are {}" in broken
    assert "('RecordRead', 13)\", \"< FetchPart(" in broken


def test_shrinking_leaves_what_matters() -> None:
    """A large plan that fails because of two faults and one rate is reduced to these."""
    plan = replace(
        draw(5),
        faults=tuple(
            PlannedFault(float(n), kind, n) for n, kind in enumerate(("kill", "lag", "power", "skew", "stop"))
        ),
        requests=0.03,
        request_kinds=("LATE", "EXPIRED"),
        loss=0.1,
    )

    def fails(tried: RunPlan) -> bool:
        kinds = {fault.kind for fault in tried.faults}
        return {"lag", "stop"} <= kinds and "LATE" in tried.request_kinds and tried.requests > 0

    small = shrink(plan, fails)
    assert [fault.kind for fault in small.faults] == ["lag", "stop"]
    assert (small.loss, small.request_kinds, small.readers) == (0.0, ("LATE",), 0)
    assert (small.writers, small.transactions) == (1, 1)
    assert small.size < plan.size


@pytest.mark.slow
def test_a_failing_run_is_shrunk() -> None:
    """The smaller plan fails as well, and its command is that of itself."""
    plan = replace(draw(7), transactions=2)
    bug = BUGS["acknowledge-before-durable"]

    def fails(tried: RunPlan) -> bool:
        return bool(simulate(tried, around=bug, brief=True).violations)

    small = shrink(plan, fails, runs_max=8)
    assert small.size < plan.size
    assert fails(small)
    assert RunPlan.from_json(small.to_json()) == small
    assert small.to_json() in command(small)
