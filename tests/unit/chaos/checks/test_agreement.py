"""The checks of states: they fail where replicas show different parts, and where an audit is not clean."""

from __future__ import annotations

from chaos.checks.agreement import differences
from chaos.checks.audited import findings
from tidelock.client.reads.audit import AuditReport, Finding

ONE, TWO = ("p1", "", 3, "aa"), ("p2", "", 3, "bb")


def test_replicas_that_show_different_parts_are_told() -> None:
    """With the CSN, the table, and the parts that only one of them has."""
    same = {"default.bank": frozenset({ONE, TWO})}
    [found] = differences(7, {"r1": same, "r2": same, "r3": {"default.bank": frozenset({ONE})}})
    assert "table default.bank at CSN 7: only r1 has [('p2'" in found.story
    assert "only r3 has []" in found.story
    assert differences(7, {"r1": same, "r2": same}) == []
    assert differences(7, {}) == []


def test_a_table_that_only_one_replica_has_is_told() -> None:
    """Also one without parts."""
    [found] = differences(7, {"r1": {"t": frozenset()}, "r2": {}})
    assert "r2 has no such table" in found.story


def test_an_audit_that_found_something_or_was_not_made_is_told() -> None:
    """Findings, silent replicas, and replicas that were not compared."""
    finding = Finding("copies", "lost", "error", "two copies", "one", "look at it", ("r1",), {})
    bad = AuditReport(
        csn=None,
        deep=True,
        replicas={},
        silent={"r2": "no answer"},
        not_compared="one replica answered",
        findings=[finding],
    )
    told = [one.story for one in findings(bad)]
    assert len(told) == 3
    assert "two copies" in told[0]
    assert told[1:] == ["r2 was not audited: no answer", "one replica answered"]
    clean = AuditReport(csn=7, deep=True, replicas={}, silent={}, not_compared=None, findings=[])
    assert findings(clean) == []
