"""The availability that the chaos run tells: gaps, failures, and refusals that may not be."""

from __future__ import annotations

from typing import Any, Final

from tests.chaos.living.availability import (
    AFTERMATH_NS,
    Span,
    errors_by_kind,
    noticed,
    refusals_of_well_homes,
    table,
)

S: Final = 1_000_000_000


def write(ns: int, key: str, kind: str = "ok", error: str = "", home: str = "r1") -> dict[str, Any]:
    """Return the line of a write that ended."""
    return {"type": kind, "f": "write", "ns": ns, "key": key, "error": error, "tid": f"9-{home}-1-1"}


def read(ns: int, kind: str = "ok") -> dict[str, Any]:
    """Return the line of a read that ended."""
    return {"type": kind, "f": "read", "ns": ns, "process": "reader", "error": "NoAnswerError('r1')"}


KILLED: Final = Span("killed", frozenset({"r2"}), 10 * S, 20 * S)


def test_the_longest_gap_lies_within_the_event() -> None:
    """Its begin and its end count like answers; what is before and behind does not."""
    lines = [write(ns * S, f"w-{ns}") for ns in (1, 11, 12, 18, 40)] + [read(13 * S), read(14 * S, "fail")]
    [found] = noticed(lines, [KILLED])
    assert (found.writers_s, found.readers_s, found.failed, found.commits) == (6.0, 7.0, 1, 3)
    assert noticed([], [KILLED])[0].writers_s == 10.0


def test_a_refusal_by_a_home_that_is_well_is_told() -> None:
    """A dead home may refuse, and for a while afterwards; one to which nothing happened may not."""
    full = "NotEnoughReplicasError('1 of 2 durable copies')"
    at_the_victim = write(15 * S, "w-1", "fail", full, home="r2")
    soon_after = write(20 * S + AFTERMATH_NS, "w-2", "fail", full, home="r2")
    later = write(21 * S + AFTERMATH_NS, "w-3", "fail", full, home="r2")
    elsewhere = write(15 * S, "w-4", "fail", full, home="r3")
    found = refusals_of_well_homes([at_the_victim, soon_after, later, elsewhere], [KILLED])
    assert [text.split()[:3] for text in found] == [["r2", "refused", "w-3:"], ["r3", "refused", "w-4:"]]


def test_planned_failures_and_silence_are_no_refusals() -> None:
    """A rolled back write, one that is made to be refused, and one without an answer."""
    lines = [
        write(15 * S, "w-1", "fail", "rolled back"),
        write(15 * S, "w-11", "fail", "SchemaMismatchError('no number')"),
        write(15 * S, "w-2", "fail", "NoAnswerError('r1 does not answer')"),
        write(15 * S, "w-3", "info", "CommitUnknownError('r1 does not answer')"),
    ]
    assert refusals_of_well_homes(lines, []) == []
    assert errors_by_kind(lines) == {"NoAnswerError": 1, "CommitUnknownError": 1}
    assert noticed(lines, [KILLED])[0].failed == 2


def test_the_table_has_a_line_for_each_kind() -> None:
    """Median and maximum over all events of a kind."""
    other = Span("frozen", frozenset({"r1"}), 0, 4 * S)
    lines = [write(ns * S, f"w-{ns}") for ns in (1, 2, 3, 11, 19)]
    *_, frozen, killed = table(noticed(lines, [KILLED, other])).splitlines()
    assert frozen.split(" | ")[:4] == ["| frozen", "1", "1.00", "1.00"]
    assert killed.split(" | ")[:4] == ["| killed", "1", "8.00", "8.00"]
