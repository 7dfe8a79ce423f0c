"""What the demo checks when the writers have ended: every fault must be found."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidelock.demo import checks, history
from tidelock.demo.agents import Part
from tidelock.demo.compare import Row
from tidelock.demo.data import Loaded
from tidelock.demo.failure import Findings
from tidelock.demo.history import Entry, HistoryFile

LOADED = Loaded(last_orderkey=100, rows={"orders": 100, "lineitem": 400})
#: Two orders each, at CSN 5 and 7.
HISTORY = [Entry("a", 5, 101, (3, 1)), Entry("b", 7, 103, (2, 2))]
AT_5: list[Row] = [(0, 100, 400, 0, 0), (101, 1, 3, 0, 0), (102, 1, 1, 0, 0)]
AT_7: list[Row] = [*AT_5, (103, 1, 2, 0, 0), (104, 1, 2, 0, 0)]
LOG: list[dict[str, Any]] = [
    {"csn": 5, "time_ms": 1000, "tids": [{"tid": "a"}, {"tid": "x"}]},
    {"csn": 6, "time_ms": 2000, "tids": []},
    {"csn": 7, "time_ms": 3000, "tids": [{"tid": "b"}]},
]


def visible(rows: list[Row], csn: int) -> str | None:
    """The check of visible orders against the history."""
    return checks.visible_is_acknowledged(rows, csn, HISTORY, LOADED)


@pytest.mark.parametrize(("rows", "csn"), [(AT_5, 5), (AT_5, 6), (AT_7, 7), (AT_7, 9), (AT_5[:1], 4)])
def test_what_was_acknowledged_is_visible_from_its_csn_on(rows: list[Row], csn: int) -> None:
    """At each CSN exactly the orders of the transactions up to it are there."""
    assert visible(rows, csn) is None


@pytest.mark.parametrize(
    ("rows", "csn", "told"),
    [
        (AT_5, 7, "order 103 with 2 line items was acknowledged"),
        (AT_7[:-1], 7, "order 104 .* visible 0 times"),
        (AT_7, 6, "order 103 is visible at CSN 6, and no transaction"),
        ([*AT_5[:2], (102, 2, 2, 0, 0)], 5, "order 102 .* visible 2 times with 2 line items"),
        ([*AT_5[:2], (102, 1, 4, 0, 0)], 5, "visible 1 times with 4 line items"),
        ([*AT_5, (500, 1, 1, 0, 0)], 5, "order 500 is visible"),
    ],
)
def test_lost_doubled_and_unknown_orders_are_found(rows: list[Row], csn: int, told: str) -> None:
    """Too few, too many, and at the wrong CSN: all named by the order."""
    finding = visible(rows, csn)
    assert finding is not None
    assert re.search(told, finding), finding


@pytest.mark.parametrize("rows", [AT_5, AT_7])
def test_a_transaction_of_unknown_outcome_may_be_visible_or_not(rows: list[Row]) -> None:
    """It is left out of the comparison, and found by a check of its own."""
    unknown = [HISTORY[0], replace(HISTORY[1], csn=None)]
    assert checks.visible_is_acknowledged(rows, 7, unknown, LOADED) is None
    assert "the first is b" in str(checks.every_outcome_is_known(unknown))
    assert checks.every_outcome_is_known(HISTORY) is None


@pytest.mark.parametrize("row", [(0, 99, 400, 0, 0), (0, 100, 399, 0, 0), (0, 101, 400, 0, 0)])
def test_a_change_of_the_loaded_rows_is_found(row: Row) -> None:
    """The row of the loaded orders has the numbers that were loaded."""
    assert checks.nothing_loaded_is_missing(AT_7, LOADED) is None
    assert checks.nothing_loaded_is_missing([row], LOADED) is not None
    assert checks.nothing_loaded_is_missing([], LOADED) is not None


def test_the_log_has_each_acknowledged_transaction_once() -> None:
    """Missing, doubled and displaced transactions are found; those of others do not matter."""
    assert checks.acknowledged_is_logged(HISTORY, LOG) is None
    assert "0 times" in str(checks.acknowledged_is_logged(HISTORY, LOG[:2]))
    assert "2 times" in str(checks.acknowledged_is_logged(HISTORY, [*LOG, {**LOG[2], "csn": 8}]))
    assert "last at 9" in str(checks.acknowledged_is_logged(HISTORY, [LOG[0], {**LOG[2], "csn": 9}]))


def test_tids_per_csn_counts_the_wanted_ones_only() -> None:
    """Records without any of them do not lower the average."""
    assert checks.tids_per_csn({"a", "b", "x"}, LOG) == pytest.approx(1.5)
    assert checks.tids_per_csn({"a"}, LOG) == pytest.approx(1.0)
    assert checks.tids_per_csn(set(), LOG) == pytest.approx(0.0)


def test_commits_of_a_span_of_time() -> None:
    """The beginning belongs to it, the end does not."""
    assert checks.committed_between(LOG, 1000, 3000) == 2
    assert checks.committed_between(LOG, 1001, 4000) == 1


def test_replicas_that_differ_are_found() -> None:
    """A part that is missing, or has other bytes, is told with both replicas."""
    parts = [Part("p1", "", "t/p1", 3, "aa"), Part("p2", "", "t/p2", 3, "bb")]
    assert checks.replicas_agree({"r1": parts, "r2": list(parts)}, 5, "t") is None
    fewer = checks.replicas_agree({"r1": parts, "r2": parts[:1]}, 5, "t")
    assert fewer == "t at CSN 5: r1 lists 2, r2 lists 1"
    other = [parts[0], replace(parts[1], checksum="cc")]
    assert "r3 lists Part(id='p2'" in str(checks.replicas_agree({"r1": parts, "r3": other}, 5, "t"))


def test_findings_count_checks_and_keep_violations() -> None:
    """Only a check that does not hold leaves a violation."""
    findings = Findings()
    assert findings.check("one", None) is None
    assert str(findings.check("two", "what is wrong")) == "two: what is wrong"
    assert (findings.checks, len(findings.violations)) == (2, 1)


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Entries of all writers come back by CSN; the unknown ones last."""
    entries = [Entry("c", None, 120, (1,)), *reversed(HISTORY)]
    for number, entry in enumerate(entries):
        with HistoryFile(tmp_path, f"writer-{number}") as file:
            file.add(entry)
            assert history.count(tmp_path) == number + 1  # it is in the file at once
    assert history.read(tmp_path) == [*HISTORY, entries[0]]


def test_an_entry_knows_its_orders() -> None:
    """Keys follow the first one, each with the number of its line items."""
    assert list(HISTORY[0].orders()) == [(101, 3), (102, 1)]
    assert history.expected_orders(HISTORY, 6) == {101: 3, 102: 1}
