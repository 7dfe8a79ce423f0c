"""Tests of the judge of sets: a planted fault of each kind is found, and a good history is not accused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.judging import presence
from tests.unit.chaos.planted import Planted


def _good() -> Planted:
    plant = Planted()
    plant.operation([["add", "a", 1], ["add", "b", -1]], f="add", tid="0-r1-1-1", csn=5)
    plant.operation([["add", "a", 2], ["add", "b", -2]], f="add", tid="0-r1-1-2", end="info")
    plant.operation([["add", "a", 3]], f="add", end="fail")
    plant.operation([["r", "a", []], ["r", "b", []]], f="read", snapshot=4)
    plant.operation([["r", "a", [1]], ["r", "b", [-1]]], f="read", snapshot=5)
    plant.operation([["r", "a", [1, 2]], ["r", "b", [-1, -2]]], f="read", snapshot=7)
    plant.operation([["remove", "a", 1]], f="remove", tid="0-r1-1-3", csn=8)
    plant.operation([["r", "a", [2]], ["r", "b", [-1, -2]]], f="read", snapshot=8, last=True)
    return plant


def _read(plant: Planted, a: list[int], csn: int, b: list[int] | None = None, *, last: bool = False) -> None:
    value = [["r", "a", a]] + ([["r", "b", b]] if b is not None else [])
    plant.operation(value, f="read", snapshot=csn, last=last)


def test_a_good_history_is_clean() -> None:
    """Unknown ends, failures, removals and old reads are no violations."""
    assert presence.judged("sets", _good().ended) == []


@pytest.mark.parametrize(
    ("claim", "plant"),
    [
        ("once", lambda of: _read(of, [1, 1], 6)),
        ("committed", lambda of: _read(of, [1, 99], 6)),
        ("committed", lambda of: _read(of, [1, 3], 6)),
        ("snapshot", lambda of: _read(of, [1], 4)),
        ("snapshot", lambda of: _read(of, [1, 2], 9)),
        ("lost", lambda of: _read(of, [2], 7)),
        ("lost", lambda of: of.operation([["r", "b", [-2]]], f="read", snapshot=9)),
        ("atomic", lambda of: _read(of, [1], 6, [-1, -2])),
        ("atomic", lambda of: of.operation([["r", "b", [-1]]], f="read", snapshot=10)),
        ("agree", lambda of: _read(of, [1, 2], 5)),
    ],
)
def test_a_planted_fault_is_found(claim: str, plant: Callable[[Planted], None]) -> None:
    """Each kind of wrong read has its claim, its moment and its operations."""
    planted = _good()
    plant(planted)
    found = presence.judged("sets", planted.ended)
    assert claim in {one.claim for one in found}
    one = next(one for one in found if one.claim == claim)
    assert one.check == "sets"
    assert one.ns is not None
    assert "operation" in one.story


def test_an_acknowledged_element_without_a_csn_must_be_there_at_the_end() -> None:
    """Rows that have landed may come late, but they come."""
    plant = Planted()
    plant.operation([["add", "a", 1]], f="land")
    _read(plant, [], 4)
    assert presence.judged("landing", plant.ended) == []
    _read(plant, [], 9, last=True)
    assert [one.claim for one in presence.judged("landing", plant.ended)] == ["lost"]


def test_a_process_that_goes_back_is_found() -> None:
    """A snapshot below the last commit of the same process is told."""
    plant = Planted()
    plant.operation([["add", "a", 1]], f="add", process=1, csn=5, tid="4-r1-1-1")
    plant.operation([["r", "a", []]], f="read", process=1, snapshot=4)
    found = presence.judged("sets", plant.ended)
    assert [one.claim for one in found] == ["session"]
    assert found == presence.sessions("sets", plant.ended)
    assert found[0].tids == ("4-r1-1-1",)


def test_a_job_that_counts_twice_is_found() -> None:
    """Two acknowledged operations that have added the same element."""
    plant = Planted()
    plant.operation([["add", "a", 1]], f="add", csn=5, tid="4-r1-1-1")
    plant.operation([["add", "a", 1]], f="add", csn=6, tid="4-r1-1-2")
    assert [one.claim for one in presence.judged("sets", plant.ended)] == ["once"]


def test_few_of_each_kind_are_told() -> None:
    """A set that was lost as a whole does not fill the report."""
    plant = Planted()
    for number in range(30):
        plant.operation([["add", "a", number]], f="add", csn=5)
    _read(plant, [], 6)
    assert len(presence.judged("sets", plant.ended)) == presence.SHOWN
