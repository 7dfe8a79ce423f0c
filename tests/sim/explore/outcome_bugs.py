"""Planted bugs in the order of the questions for an outcome (:mod:`tests.sim.explore.resolving`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from unittest import mock

from msgspec.structs import replace

from tests.sim.explore.planted import Bug
from tests.sim.explore.replay import Replays
from tests.sim.explore.resolving import Resolving
from tests.sim.explore.search import Model
from tidelock.csnlog.core.results import Aborted, CommittedUnseen, Outcome, TooOld
from tidelock.replica_agent.transactions.outcomes import resolver as resolver_module
from tidelock.replica_agent.transactions.outcomes.resolver import OutcomeResolver
from tidelock.replica_agent.transactions.outcomes.rules import (
    CLIENT,
    LOCK,
    AskHome,
    FenceHome,
    NeverWas,
    OutcomeFacts,
    Policy,
    Question,
    SearchLog,
    next_step,
)


async def _read_with_the_floor_first(
    self: OutcomeResolver, facts: OutcomeFacts, *, newest: bool
) -> OutcomeFacts:
    """The floor is read before the outcomes: one that is forgotten in between is missing above the floor."""
    floor = self.local.floor()
    reading = await self.log.find(facts.tid, newest=newest)
    return facts.with_reading(reading, kept=self.local.commit(facts.tid), floor=floor, newest=newest)


def _keep_what_was_read(self: OutcomeFacts, *, raised: bool) -> OutcomeFacts:
    """A look that was made before the fence still counts after it."""
    reading = self.reading
    if raised and reading is not None:
        reading = replace(reading, boot=self.tid.boot + 1)
    return replace(self, fence_tried=True, reading=reading)


def _abort_the_silent(facts: OutcomeFacts, policy: Policy) -> Question | Outcome | NeverWas:
    """A home that does not answer is taken for dead, and its transaction for aborted: nobody is fenced."""
    step = next_step(facts, policy)
    return Aborted() if isinstance(step, FenceHome) else step


def _release_what_is_old(facts: OutcomeFacts, policy: Policy) -> Question | Outcome | NeverWas:
    """The holder of a lock is too old as soon as it is below the floor, though its home lives on."""
    step = next_step(facts, policy)
    below = facts.reading is not None and facts.tid.snapshot < facts.reading.floor
    return TooOld(facts.reading.floor) if below and isinstance(step, AskHome) and facts.reading else step


def _believe_the_first_reading(facts: OutcomeFacts, policy: Policy) -> Question | Outcome | NeverWas:
    """The holder of a lock is committed, says its home, and not in the log as it was read before: too old."""
    step = next_step(facts, policy)
    again = (
        isinstance(step, SearchLog) and isinstance(facts.home, CommittedUnseen) and facts.reading is not None
    )
    return TooOld(facts.reading.floor) if again and facts.reading else step


def _resolving(policy: Policy) -> Callable[..., Model]:
    def model(replays: Replays) -> Model:
        return Resolving(replays, policy)

    return model


def _rules(
    planted: Callable[[OutcomeFacts, Policy], Question | Outcome | NeverWas],
) -> Callable[[], mock._patch]:  # type: ignore[type-arg]
    return lambda: mock.patch.object(resolver_module, "next_step", planted)


OUTCOME_BUGS: Final = (
    Bug(
        "outcomes: the floor is read before them",
        frozenset({"I8 DECIDED"}),
        _resolving(CLIENT),
        planted=lambda: mock.patch.object(OutcomeResolver, "_read", _read_with_the_floor_first),
    ),
    Bug(
        "outcomes: aborted without a fence",
        frozenset({"I8 DECIDED"}),
        _resolving(CLIENT),
        planted=_rules(_abort_the_silent),
    ),
    Bug(
        "outcomes: a look before the fence counts",
        frozenset({"I8 DECIDED"}),
        _resolving(CLIENT),
        planted=lambda: mock.patch.object(OutcomeFacts, "fenced", _keep_what_was_read),
    ),
    Bug(
        "outcomes: the home of a lock's old holder is not asked",
        frozenset({"I7 NOCONFLICT"}),
        _resolving(LOCK),
        planted=_rules(_release_what_is_old),
    ),
    Bug(
        "outcomes: no look behind the answer of a lock's home",
        frozenset({"I7 NOCONFLICT"}),
        _resolving(LOCK),
        planted=_rules(_believe_the_first_reading),
    ),
)
