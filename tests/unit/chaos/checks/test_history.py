"""The check of history: it fails where a CSN is refused before its time."""

from __future__ import annotations

from typing import Any

from chaos.checks.history import forgotten
from tests.unit.chaos.lines import call, run


def too_old(at_s: float, csn: int | None) -> dict[str, Any]:
    """Return a read that was refused because its CSN is too old."""
    return call(at_s, "read", "fail", csn=csn, error="SnapshotTooOldError", message="below the horizon")


def judged(*lines: dict[str, Any]) -> list[str]:
    """Return the stories of CSNs that were forgotten, where 20 s are kept; a call takes 0.1 s."""
    return [one.story for one in forgotten([run() | {"history_s": 20.0}, *lines])]


def test_a_csn_that_is_refused_before_its_time_is_told() -> None:
    """Half of the history has to pass, since the clock of forgetting may go twice as fast as time."""
    made = call(10, csn=7)
    assert judged(made, too_old(19.8, 7)) == [
        "CSN 7 was at most 9.9 s old, and 20 s are kept: below the horizon"
    ]
    assert judged(made, too_old(20.0, 7)) == []


def test_the_latest_commit_that_is_not_above_it_tells_its_age() -> None:
    """Commits are acknowledged in any order; later CSNs tell nothing."""
    commits = [call(30, csn=9), call(12, csn=7), call(10, csn=6)]
    assert len(judged(*commits, too_old(21, 8))) == 1
    assert judged(*commits, too_old(22, 8)) == []


def test_where_nobody_knows_the_age_nothing_is_concluded() -> None:
    """No commit below it was acknowledged, no CSN was named, or the error is another one."""
    other = call(11, "read", "fail", csn=7, error="NoAnswerError")
    assert judged(call(10, csn=7), too_old(11, 5), too_old(11, None), other) == []
