"""The checkers can fail: each anomaly and each defect of a store is reported as its class."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkers import black_box, by_timestamps
from tests.checkers.conflicts import ADDED_ROWS, ALL_CHANGES
from tests.checkers.controls.defective_store import Defect
from tests.checkers.controls.expected import DEFECTS, HISTORIES, Findings
from tests.checkers.controls.workload import make_history
from tests.checkers.levels import Level, Order, forbidden
from tests.checkers.operations import History, load

TESTDATA = Path(__file__).resolve().parents[2] / "testdata" / "histories"
#: Random histories of each defect, together long enough to show each class that is expected of it.
SEEDS = range(4)


def _names(history: History, expected: Findings) -> tuple[set[str], set[str]]:
    strict = expected.order is Order.REALTIME
    return (
        {one.name for one in by_timestamps.check(history, strict=strict)},
        {one.name for one in black_box.anomalies(history, expected.order)},
    )


@pytest.mark.parametrize("name", HISTORIES)
def test_a_bad_history_is_reported_as_its_class_and_nothing_else(name: str) -> None:
    """Each checker that can see the anomaly names it, and makes nothing worse of it."""
    expected = HISTORIES[name]
    by_numbers, by_lists = _names(load(TESTDATA / f"{name}.jsonl"), expected)
    assert by_numbers == expected.by_timestamps
    assert by_lists == expected.black_box
    assert by_lists <= forbidden(expected.level, expected.order)


def test_every_bad_history_is_expected_to_be_something() -> None:
    """No file lies in the folder without a test, and the page describes each of them."""
    files = {path.stem for path in TESTDATA.glob("*.jsonl")}
    rows = (TESTDATA / "README.md").read_text(encoding="utf-8").split("\n| `")[1:]
    assert files == HISTORIES.keys() == {row.partition("`")[0] for row in rows}


def test_every_class_of_anomaly_has_its_history() -> None:
    """A class that no history shows could be one that the checker never reports."""
    shown = {name for findings in HISTORIES.values() for name in findings.black_box}
    assert shown >= forbidden(Level.SERIALIZABLE, Order.NONE)
    invariants = {name for findings in HISTORIES.values() for name in findings.by_timestamps}
    assert invariants == {
        "INT",
        "EXT",
        "NOCONFLICT",
        "ABORT",
        "SESSION",
        "REALTIME",
        "SERIAL",
        "CSN",
        "AGREE",
    }


def test_the_history_of_write_skew_is_fine_under_snapshot_isolation() -> None:
    """Snapshot isolation allows write skew, so a store that has it keeps its promise."""
    history = load(TESTDATA / "write-skew.jsonl")
    assert black_box.check(history, Level.SNAPSHOT) == []
    assert [one.name for one in black_box.check(history, Level.SERIALIZABLE)] == ["G2-item"]


@pytest.mark.parametrize("defect", Defect)
def test_a_defect_of_a_store_is_reported_as_its_class(defect: Defect, tmp_path: Path) -> None:
    """Random histories of a store with one defect show it to each checker that can see it."""
    expected = DEFECTS[defect]
    by_numbers: set[str] = set()
    by_lists: set[str] = set()
    for seed in SEEDS:
        history = make_history(
            tmp_path / str(seed),
            seed=seed,
            transactions=250,
            defects=[defect],
            serializable=expected.level is Level.SERIALIZABLE,
            fresh=expected.order is Order.REALTIME,
        )
        numbers, lists = _names(history, expected)
        by_numbers |= numbers
        by_lists |= lists & forbidden(expected.level, expected.order)
    assert by_numbers >= expected.by_timestamps
    assert by_lists >= expected.black_box
    assert bool(by_numbers) == bool(expected.by_timestamps)
    assert bool(by_lists) == bool(expected.black_box)


@pytest.mark.parametrize("appends_conflict", [False, True])
@pytest.mark.parametrize(
    ("level", "fresh"), [(Level.SNAPSHOT, False), (Level.SERIALIZABLE, False), (Level.SERIALIZABLE, True)]
)
def test_a_store_without_defects_is_found_clean(
    level: Level, fresh: bool, appends_conflict: bool, tmp_path: Path
) -> None:
    """A checker that reports what is right would be ignored when it matters."""
    conflicting = ALL_CHANGES if appends_conflict else ADDED_ROWS
    order = Order.REALTIME if fresh else Order.PROCESS
    for seed in range(6):
        history = make_history(
            tmp_path / str(seed),
            seed=seed,
            transactions=250,
            conflicting=conflicting,
            serializable=level is Level.SERIALIZABLE,
            fresh=fresh,
        )
        assert by_timestamps.check(history, conflicting=conflicting, strict=fresh) == []
        assert black_box.check(history, level, order, conflicting=conflicting) == []


def test_a_store_with_snapshot_isolation_shows_write_skew(tmp_path: Path) -> None:
    """The clean histories are busy enough to show what only serializability forbids."""
    history = make_history(tmp_path / "history", seed=1, transactions=250)
    assert "G2-item" in {one.name for one in black_box.anomalies(history)}
