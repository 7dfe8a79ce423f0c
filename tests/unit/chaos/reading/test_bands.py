"""Faults as bands in time, and the spans in which commits are promised."""

from __future__ import annotations

from chaos import faults
from chaos.reading.bands import acts_of, at, bands, promised, shapes
from tests.unit.chaos.lines import S, fault, phase, run


def test_a_band_has_all_moments_of_its_fault() -> None:
    """A fault that was not healed has no end; the first proof counts."""
    lines = [run(), *fault(1, "killed", ["r1"], 1, 2, 3), *fault(2, "frozen", ["r2"], 4, 5, 6)[:2]]
    killed, frozen = bands(lines)
    assert (killed.begin_ns, killed.end_ns, killed.well_ns) == (1 * S, 2 * S, 3 * S)
    assert (killed.kind, killed.targets, killed.proof) == ("killed", ("r1",), "it was seen")
    assert (frozen.proof, frozen.well_ns > 10**18) == (None, True)


def test_a_moment_not_long_after_a_fault_belongs_to_it() -> None:
    """A node that comes back may still answer with what happened to it."""
    moments = bands([run(), *fault(1, "killed", ["r1"], 10, 20, 30)])
    assert [len(at(moments, second * S)) for second in (9, 10, 30, 34, 36)] == [0, 1, 1, 1, 0]


def test_commits_are_promised_but_while_too_few_are_well() -> None:
    """Spans that meet are one; a member that left counts no more when the change is over."""
    lines = [
        run(),
        phase(1, "faults"),
        *fault(1, "killed", ["r1"], 10, 20, 30),
        *fault(2, "frozen", ["r2"], 25, 28, 40),
        *fault(3, "ZooKeeper majority lost", [], 50, 55, 60),
        {"ns": 70 * S, "what": "members", "replicas": ["r1", "r2"]},
        *fault(4, "killed", ["r1"], 80, 85, 90),
    ]
    moments = bands(lines)
    found = promised(shapes(lines), moments, acts_of(moments, faults.ALL), 100 * S)
    assert found == [(0, 25 * S), (30 * S, 50 * S), (60 * S, 80 * S), (90 * S, 100 * S)]
