"""The scenarios that are explored: which transactions, and how much of which trouble."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.explore.commits import Commits
from tests.sim.explore.replay import Replays
from tests.sim.explore.search import Model
from tests.sim.explore.world import Budget, Tx


@dataclass(frozen=True, slots=True)
class Scenario:
    """A world to explore; ``fast`` ones are part of every test run."""

    name: str
    model: Callable[[Replays], Model]
    fast: bool = False


SCENARIOS = (
    Scenario(
        "lost messages, small",
        lambda replays: Commits(
            replays, (Tx(0, 1, label="x"), Tx(1, 1, label="x")), Budget(lose_request=1, lose_reply=2)
        ),
        fast=True,
    ),
)
