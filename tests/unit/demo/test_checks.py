"""The checks of the demo: each fault of a round must be found, by a separate check or in the history."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from demo import checks
from demo.failure import Findings
from workloads.checker import check
from workloads.compare import Row
from workloads.history import CallHistory, Listing, LoggedPart, parse
from workloads.tpch.data import Loaded

LOADED = Loaded(last_orderkey=100, rows={"orders": 100, "lineitem": 400})
AT_5: list[Row] = [(0, 100, 400, 0, 0), (101, 1, 3, 0, 0), (102, 1, 1, 0, 0)]
AT_7: list[Row] = [*AT_5, (103, 1, 2, 0, 0), (104, 1, 2, 0, 0)]
ORDERS = "default.orders"
#: The part of the load, whose entries are in a manifest, and that of the transaction at CSN 7.
LOADED_PART = (ORDERS, "p-load", "o_year=1995", 100, 10, "aa")
NEW_PART = (ORDERS, "p-b", "o_year=1995", 2, 10, "bb")


def logged(csn: int, *tids: str, manifest: bool = False) -> dict[str, Any]:
    """One record of GET /log, at one second for each CSN; the transaction at CSN 7 adds a part."""
    names = ("table", "part", "path", "rows", "length", "checksum")
    added = [{"action": "AddPart", **dict(zip(names, NEW_PART, strict=True))}] if csn == 7 else []
    return {
        "csn": csn,
        "kind": "commit",
        "time_ms": csn * 1000,
        "tids": [
            {
                "tid": tid,
                "entries": added,
                "manifest": {"part": "m"} if manifest else None,
                "data_change": True,
                "carrier": None,
            }
            for tid in tids
        ],
    }


LOG = [logged(4, "load", manifest=True), logged(5, "a"), logged(6, "x"), logged(7, "b")]


def batch(tid: str, csn: int | None, first_key: int, lines: Sequence[int], ns: int) -> list[dict[str, Any]]:
    """Return the notes of a writer about one transaction; without a CSN the outcome is unknown."""
    keys = [str(first_key + number) for number in range(len(lines))]
    common = {"process": tid, "keys": keys}
    return [
        {"type": "invoke", "f": "write", "ns": ns, "rows": [[1, count] for count in lines], **common},
        {"type": "invoke", "f": "commit", "ns": ns, "tid": tid, "snapshot": 4, **common},
        {
            "type": "info" if csn is None else "ok",
            "f": "write",
            "ns": ns + 10,
            "tid": tid,
            "csn": csn,
            **common,
        },
    ]


def history(rows: Sequence[Row], csn: int, b_at: int | None = 7, log: Sequence[Any] = LOG) -> CallHistory:
    """Return the history of the clients, with one round of Spark at a CSN."""
    load = {"process": "load", "key": checks.LOADED_KEY, "tid": "load", "ns": 0}
    lines: list[dict[str, Any]] = [
        {"type": "invoke", "f": "write", "rows": checks.loaded_rows(LOADED), **load},
        {"type": "ok", "f": "write", "csn": 4, **load},
        *batch("a", 5, 101, (3, 1), 100),
        *batch("b", b_at, 103, (2, 2), 200),
        {
            "type": "ok",
            "f": "read",
            "process": "Spark",
            "ns": 300,
            "replica": "r1",
            "csn": csn,
            "rows": checks.balances(rows),
        },
        {"type": "ok", "f": "log", "records": list(checks.log_lines(log, [LOADED_PART]))},
    ]
    return replace(parse(lines), elsewhere=frozenset({"x"}))


def violations(found: CallHistory) -> str:
    """Return all violations of the invariants in a history."""
    return "\n".join(f"{one.invariant}: {one.what}" for one in check(found))


@pytest.mark.parametrize(("rows", "csn"), [(AT_5, 5), (AT_5, 6), (AT_7, 7), (AT_7, 9), (AT_5[:1], 4)])
def test_what_was_acknowledged_is_visible_from_its_csn_on(rows: list[Row], csn: int) -> None:
    """At each CSN exactly the loaded orders and those of earlier transactions are visible."""
    assert violations(history(rows, csn)) == ""


@pytest.mark.parametrize(
    ("rows", "csn", "told"),
    [
        (AT_5, 7, "I4 DURABLE: .* misses 103, acknowledged at CSN 7"),
        (AT_7[:-1], 7, "I4 DURABLE: .* misses 104"),
        (AT_7, 6, "I5 NODIRTY: .* found rows of 103 .* whose CSN is 7"),
        ([*AT_5[:2], (102, 2, 2, 0, 0)], 5, "I3 ATOMIC: .*rows_a=2.* of 102"),
        ([*AT_5[:2], (102, 1, 4, 0, 0)], 5, "I3 ATOMIC: .*rows_b=4.* of 102"),
        ([*AT_5[:2], (102, 1, 1, 5, 1)], 5, "I3 ATOMIC: .*sum_a=5.* of 102"),
        ([*AT_5, (500, 1, 1, 0, 0)], 5, "I5 NODIRTY: .* found rows of 500"),
        ([(0, 99, 400, 0, 0), *AT_5[1:]], 5, "I3 ATOMIC: .* of 0, which wrote"),
        ([(0, 100, 399, 0, 0), *AT_5[1:]], 5, "I3 ATOMIC: .* of 0, which wrote"),
        ([(0, 101, 400, 0, 0), *AT_5[1:]], 5, "I3 ATOMIC: .* of 0, which wrote"),
        (AT_5[1:], 5, "I4 DURABLE: .* misses 0, acknowledged at CSN 4"),
    ],
)
def test_lost_doubled_and_unknown_orders_are_found(rows: list[Row], csn: int, told: str) -> None:
    """Missing, doubled, misplaced and changed orders are found by their keys, loaded ones as 0."""
    found = violations(history(rows, csn))
    assert re.search(told, found), found


def test_a_transaction_of_unknown_outcome_is_judged_by_the_log() -> None:
    """A transaction of unknown outcome must be visible from its CSN in the log on."""
    assert violations(history(AT_7, 7, b_at=None)) == ""
    assert "I5 NODIRTY" in violations(history(AT_7, 7, b_at=None, log=LOG[:3]))


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (LOG[:3], "I4 DURABLE: 103 was acknowledged at CSN 7, and the log does not have b"),
        ([*LOG, logged(8, "b")], "I1 UNIQUE: b stands in the log at \\[7, 8\\]"),
        (
            [*LOG[:3], logged(7), logged(8, "b")],
            "I17 TRUTHFUL: 103 was acknowledged at CSN 7; the log has b at 8",
        ),
        ([*LOG[:3], logged(7, "b", "z")], "I17 TRUTHFUL: the log has z at CSN 7, which no client"),
    ],
)
def test_a_log_that_contradicts_the_clients_is_found(log: list[Any], told: str) -> None:
    """Missing, doubled, displaced and unknown transactions of the log are found."""
    listed = Listing("r1", 5, ORDERS, frozenset({LoggedPart(*LOADED_PART)}))
    found = violations(replace(history(AT_5, 5, log=log), listings=(listed,)))
    assert re.search(told, found), found


@pytest.mark.parametrize(
    ("bend", "told"),
    [
        (lambda parts: parts[:1], "I10 AGREE"),
        (lambda parts: [parts[0], parts[1]._replace(checksum="cc")], "I10 AGREE"),
        (lambda parts: parts[1:], "I4 DURABLE"),
    ],
    ids=["a part misses", "other bytes", "a part of the load misses"],
)
def test_replicas_that_differ_are_found(
    bend: Callable[[list[LoggedPart]], list[LoggedPart]], told: str
) -> None:
    """Every replica must list the parts of the log and of the load, with their checksums."""
    parts = [LoggedPart(*LOADED_PART), LoggedPart(*NEW_PART)]
    sound = replace(
        history(AT_7, 7), listings=tuple(Listing(one, 7, ORDERS, frozenset(parts)) for one in ("r1", "r2"))
    )
    assert violations(sound) == ""
    bent = (*sound.listings, Listing("r3", 7, ORDERS, frozenset(bend(parts))))
    assert told in violations(replace(sound, listings=bent))


def test_commits_of_a_span_of_time() -> None:
    """The beginning belongs to it, the end does not."""
    assert checks.committed_between(LOG, 5000, 7000) == 2
    assert checks.committed_between(LOG, 5001, 8000) == 2


def test_a_carrier_is_no_commit_of_a_client() -> None:
    """Its riders count, and it does not, since no client has begun it."""
    record = logged(5, "carrier", "a", "b")
    for rider in record["tids"][1:]:
        rider["carrier"] = "carrier"
    assert checks.committed_between([record], 5000, 6000) == 2


def test_findings_count_checks_and_keep_violations() -> None:
    """Only a check that does not hold leaves a violation."""
    findings = Findings()
    assert findings.check("one", None) is None
    assert str(findings.check("two", "what is wrong")) == "two: what is wrong"
    assert (findings.checks, len(findings.violations)) == (2, 1)
