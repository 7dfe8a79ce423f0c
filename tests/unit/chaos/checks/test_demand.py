"""The demand of commits: it fails where clients had to wait although enough was well."""

from __future__ import annotations

from typing import Any

from chaos import faults
from chaos.checks.demand import stalls
from chaos.reading.bands import acts_of, bands
from chaos.record.violation import Violation
from tests.unit.chaos.lines import S, call, fault, phase, run


def judged(*lines: dict[str, Any]) -> list[Violation]:
    """Return the stalls of more than 15 s, 10 s after enough is well, in 100 s of faults."""
    whole = [run(), phase(0, "faults"), *lines, phase(100, "heal")]
    return stalls(whole, acts_of(bands(whole), faults.ALL), stall_max_s=15.0, grace_s=10.0)


def test_a_stall_beside_a_fault_within_tolerance_is_told() -> None:
    """With its length and the faults that acted."""
    commits = [call(second) for second in (*range(10, 40, 5), *range(60, 100, 5))]
    [found] = judged(*commits, *fault(1, "killed", ["r1"], 30, 40, 45))
    assert (found.claim, found.ns) == ("I14 LIVE: commits go on", 35 * S)
    assert "25.0 s" in found.story
    assert "killed at r1" in found.story


def test_a_run_without_commits_is_one_stall() -> None:
    """Refusals and reads are no commits."""
    assert len(judged(call(50, end="fail"), call(51, "read"))) == 1


def test_nothing_is_demanded_while_too_few_are_well_and_shortly_after() -> None:
    """A lost majority halts commits; from 10 s after its heal on they are demanded again."""
    lost = fault(1, "ZooKeeper majority lost", [], 12, 60, 62)
    assert judged(*lost, call(10), *(call(second) for second in range(85, 100, 5))) == []
    [found] = judged(*lost, call(10), call(95))
    assert found.ns == 72 * S
