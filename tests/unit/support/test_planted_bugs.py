"""The planted bugs name what they replace as text, which a refactoring may rename unnoticed."""

from __future__ import annotations

import pytest

from tests.sim.bugs import BUGS
from tests.sim.explore.bugs import BUGS as EXPLORED
from tests.sim.explore.planted import Bug


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_the_simulation_can_be_planted(bug: str) -> None:
    """All that it replaces is there; a run that finds it takes much longer."""
    with BUGS[bug]():
        pass


@pytest.mark.parametrize("bug", EXPLORED, ids=lambda bug: bug.name)
def test_a_bug_of_the_exploration_can_be_planted(bug: Bug) -> None:
    """As above."""
    with bug.planted():
        pass
