"""The check of refusals: it fails where a home refuses to which nothing happened."""

from __future__ import annotations

from typing import Any

import pytest

from chaos import faults
from chaos.checks.refusals import refusals
from chaos.reading.bands import acts_of, bands
from tests.unit.chaos.lines import call, fault, run

KILLED = fault(1, "killed", ["r2"], 10, 18, 20)


def refused(at_s: float, home: str | None, error: str = "NotEnoughReplicasError", **facts: Any) -> Any:
    """Return a refused write."""
    return call(at_s, end="fail", home=home, error=error, message="1 of 2 durable copies", **facts)


def judged(*lines: dict[str, Any]) -> list[str]:
    """Return the stories about refusals."""
    whole = [run(), *lines]
    moments = bands(whole)
    return [one.story for one in refusals(whole, moments, acts_of(moments, faults.ALL))]


def test_a_refusal_by_a_home_that_is_well_is_told() -> None:
    """A dead home may refuse, and for a while afterwards; one to which nothing happened may not."""
    found = judged(*KILLED, refused(15, "r2"), refused(24, "r2"), refused(26, "r2"), refused(15, "r3"))
    assert [story.partition(":")[0] for story in found] == ["r2 refused", "r3 refused"]


@pytest.mark.parametrize("error", ["SerializationConflictError", "LabelExistsError", "DuplicateKeyError"])
def test_a_conflict_is_a_legitimate_refusal(error: str) -> None:
    """It is about what was asked, not about the state of the home."""
    assert judged(refused(15, "r3", error)) == []


def test_silence_and_planned_refusals_are_none() -> None:
    """An answer that did not come is unavailability; a refusal that a workload expects is right."""
    unknown = call(15, end="info", home="r3", error="CommitUnknownError")
    assert judged(refused(15, "r3", "NoAnswerError"), refused(15, "r3", expected=True), unknown) == []
    assert judged(refused(15, None)) == []


def test_a_wrong_clock_excuses_nothing_and_a_lost_majority_everything() -> None:
    """A fault that does no harm counts as nothing; one that halts commits concerns every home."""
    assert len(judged(*fault(1, "clock wrong", ["r3"], 10, 18, 20), refused(15, "r3"))) == 1
    assert judged(*fault(1, "ZooKeeper majority lost", [], 10, 18, 20), refused(15, "r3")) == []
    assert judged(*fault(1, "pair cut", ["r3", "r1"], 10, 18, 20), refused(15, "r3")) == []
