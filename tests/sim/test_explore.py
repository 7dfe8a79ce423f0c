"""Every state that the cores can reach keeps the promises, and no bug that is planted in them stays hidden.

What the scenarios hold, and how to see what is explored, is in docs/protocol.md, "How the core is explored".
"""

from __future__ import annotations

import pytest

from tests.sim.explore.__main__ import run
from tests.sim.explore.bugs import BUGS
from tests.sim.explore.planted import Bug
from tests.sim.explore.scenarios import SCENARIOS, ExploredScenario
from tests.sim.explore.search import STATES_MAX

#: The largest scenarios visit all their states in minutes of a core, which three other workers share.
_LARGE = (pytest.mark.slow, pytest.mark.timeout(1800))


def _cases() -> list[object]:
    return [pytest.param(one, id=one.name, marks=() if one.fast else _LARGE) for one in SCENARIOS]


def _sound_cases() -> list[object]:
    return [pytest.param(one, id=one.name, marks=_LARGE if one.large else ()) for one in BUGS]


@pytest.mark.scenario("S06", "S73", "S83")
@pytest.mark.parametrize("scenario", _cases())
def test_no_state_breaks_a_promise(scenario: ExploredScenario) -> None:
    """All states are visited and keep the promises; from all of them everything is settled in the end."""
    report = run(scenario.model)
    assert report.broken is None, report.story()
    assert not report.cut
    assert report.finals


@pytest.mark.scenario("S06", "S81")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    """The exploration turns red, with the invariant that the sentence left out protects."""
    with bug.planted():
        report = run(bug.model)
    assert report.broken is not None
    assert report.broken.invariant in bug.breaks, report.story()
    assert report.trace


@pytest.mark.parametrize("bug", _sound_cases())
def test_without_the_bug_its_scenario_is_green(bug: Bug) -> None:
    """The exploration is green without the bug, so it finds the bug and not a fault of its world.

    A large scenario is explored to twenty times the states with which the bug is found.
    """
    bound = STATES_MAX
    if bug.large:
        with bug.planted():
            bound = 20 * run(bug.model).states
    report = run(bug.sound, states_max=bound)
    assert report.broken is None, report.story()
    assert bug.large or not report.cut
