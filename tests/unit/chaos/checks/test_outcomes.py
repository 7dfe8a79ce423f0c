"""The check of outcomes: it fails where replicas differ, and where a client was told something else."""

from __future__ import annotations

import pytest

from chaos.checks.outcomes import Told, wrong
from tests.unit.chaos.lines import call

TID = "9-r1-1-1"
COMMITTED: Told = ("committed", 10)
ABORTED: Told = ("aborted", None)


@pytest.mark.parametrize(
    ("end", "csn", "answers", "claim"),
    [
        ("info", None, [COMMITTED, ABORTED, ABORTED], "I1 UNIQUE"),
        ("info", None, [COMMITTED, ("committed", 11)], "I1 UNIQUE"),
        ("info", None, [("running", None), ("running", None)], "I17 TRUTHFUL: every outcome is known"),
        ("info", None, [("UnavailableError", None)], "I17 TRUTHFUL: every outcome is known"),
        ("ok", 10, [ABORTED], "I4 DURABLE"),
        ("ok", 10, [("committed", 11)], "I4 DURABLE"),
        ("fail", None, [COMMITTED], "I17 TRUTHFUL: what was refused"),
    ],
)
def test_a_wrong_outcome_is_told(end: str, csn: int | None, answers: list[Told], claim: str) -> None:
    """With the tid, and what each replica has said."""
    line = call(5, end=end, tid=TID, csn=csn)
    [found] = wrong([line], {TID: {f"r{number}": answer for number, answer in enumerate(answers, 1)}})
    assert found.claim.startswith(claim)
    assert (found.tids, found.ns) == ((TID,), line["ns"])
    assert "r1: " in found.story


@pytest.mark.parametrize(
    ("end", "csn", "answer"),
    [("ok", 10, COMMITTED), ("ok", None, ABORTED), ("fail", None, ABORTED), ("info", None, COMMITTED)],
)
def test_a_right_outcome_is_not_told(end: str, csn: int | None, answer: Told) -> None:
    """A transaction that changed nothing is acknowledged without a CSN."""
    line = call(5, end=end, tid=TID, csn=csn)
    assert wrong([line], {TID: {"r1": answer, "r2": answer}}) == []
    assert wrong([line], {}) == []
