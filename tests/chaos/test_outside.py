"""The outside checker judges histories of lists: good ones are clean, and planted anomalies are found.

It is a program in Rust: `tests/checkers/outside.py` says how it is installed. Without it these tests are
skipped, and fail in CI.
"""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path

import pytest

from chaos.record.history import History, Operation, lines
from tests.chaos import outside_lists
from tests.checkers import outside
from tests.checkers.outside import MODEL, MODEL_OF_ROWS, Judgement
from tests.support.faults import ability
from tests.support.project.source import ROOT

_BAD = ROOT / "tests" / "testdata" / "histories"
#: The level that each bad history breaks, and the name of what is found. The others of the folder contradict
#: CSNs, or replace lists: that is not what this program looks at.
_FOUND = {
    "aborted-read": (MODEL, "G1a"),
    "circular-information": (MODEL, "G1c"),
    "dirty-write": (MODEL, "G0"),
    "duplicate-elements": (MODEL, "duplicate-elements"),
    "half-an-unknown": (MODEL, "G-single"),
    "incompatible-order": (MODEL, "incompatible-order"),
    "internal": (MODEL, "internal"),
    "intermediate-read": (MODEL, "G-single"),
    "long-fork": (MODEL, "G-nonadjacent"),
    "read-skew": (MODEL, "G-single"),
    "session-goes-back": (MODEL, "process"),
    "stale-read": ("strong-snapshot-isolation", "realtime"),
    "write-skew": ("serializable", "G2-item"),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def adya() -> Path:
    """Return the program."""
    ability.require(outside_lists.lack())
    found = outside.program()
    assert found is not None
    return found


def test_a_good_history_is_clean(adya: Path, tmp_path: Path) -> None:
    """Transactions one after the other keep this level, and the one above it."""
    path = tmp_path / "good.jsonl"
    chosen = random.Random(7)
    lists: dict[str, list[int]] = {f"la{number}/1": [] for number in range(4)}
    with closing(History(path)) as history:
        processes = [history.process() for _ in range(3)]
        for element in range(300):
            process, (key, other) = chosen.choice(processes), chosen.sample(sorted(lists), 2)
            asked: list[Operation] = [["r", other, None], ["append", key, element]]
            process.invoke(asked)
            lists[key].append(element)
            process.ok([["r", other, [*lists[other]]], ["append", key, element]])
    for model in (MODEL, "strict-serializable"):
        verdict = outside.judged(adya, path, model=model)
        assert verdict.judgement is Judgement.VALID, verdict.text


@pytest.mark.parametrize("name", _FOUND)
def test_an_anomaly_is_found(adya: Path, name: str) -> None:
    """The histories that were written by hand for the project's own checkers."""
    model, what = _FOUND[name]
    verdict = outside.judged(adya, _BAD / f"{name}.jsonl", model=model)
    assert verdict.judgement is Judgement.ANOMALIES
    assert what in verdict.text


def test_rows_that_were_added_at_the_same_time_are_in_no_order(adya: Path, tmp_path: Path) -> None:
    """A transaction reads its own row; one that was committed meanwhile has an earlier CSN."""
    path = tmp_path / "list_append.ordered.jsonl"
    with closing(History(path)) as history:
        one, other, reader = (history.process() for _ in range(3))
        one.invoke([["append", "la0/1", 2], ["r", "la0/1", None]])
        other.invoke([["append", "la0/1", 1]])
        other.ok([["append", "la0/1", 1]])
        one.ok([["append", "la0/1", 2], ["r", "la0/1", [2]]])
        reader.invoke([["r", "la0/1", None]])
        reader.ok([["r", "la0/1", [1, 2]]])
    assert outside.judged(adya, path, model=MODEL_OF_ROWS).judgement is Judgement.ANOMALIES
    told = tmp_path / "rows.jsonl"
    told.write_text("".join(json.dumps(line) + "\n" for line in outside_lists.read_first(lines(path))))
    assert outside.judged(adya, told, model=MODEL_OF_ROWS).judgement is Judgement.VALID


def test_what_is_no_history_is_refused(adya: Path, tmp_path: Path) -> None:
    """A file that cannot be read is no clean history."""
    path = tmp_path / "none.jsonl"
    path.write_text("no history\n", encoding="utf-8")
    with pytest.raises(ValueError, match="can read"):
        outside.judged(adya, path)
