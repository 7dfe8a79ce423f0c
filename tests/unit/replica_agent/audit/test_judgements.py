"""Judgements on locks, undecided rows, labels, pins, tables and progress: owned or not."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.project.source import ROOT
from tests.support.replicas.audited import RULE_SETS
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import PinState
from tidelock.csnlog.core.results import Aborted, Committed, Outcome, Running, TooOld
from tidelock.replica_agent.audit import judgements
from tidelock.replica_agent.audit.judgements import Definition, Label, Labelled, PartRemoval
from tidelock.replica_agent.tables.layouts import HERE
from tidelock.replication.core.lock_rules import KeyRange, LockInfo, OnePart, OnePartition, Scope, WholeTable

R1, R2 = ReplicaId("r1"), ReplicaId("r2")
TID, OTHER = Tid(Csn(5), R1, 1, 1), Tid(Csn(5), R2, 1, 2)
TABLE = TableId("default.t")
PART = PartId("r1-1-1")
TAIL = Csn(10)


def lock(scope: Scope, tid: Tid = TID) -> LockInfo:
    """Return a lock on the table."""
    return LockInfo(f"locks/{TABLE}/x", TABLE, scope, tid, merge=False)


@pytest.mark.parametrize(
    ("outcome", "silent", "stale"),
    [
        (Running(), (), False),
        (Committed(Csn(10)), (), False),
        (Committed(Csn(9)), (), True),
        (Committed(Csn(9)), (R1,), False),
        (TooOld(Csn(3)), (), True),
        (TooOld(Csn(3)), (R1,), False),
        (Aborted(), (), True),
        (Aborted(), (R1,), True),
        (None, (), True),
    ],
)
def test_a_lock_is_stale_when_nobody_needs_it(
    outcome: Outcome | None, silent: tuple[ReplicaId, ...], stale: bool
) -> None:
    """The lock of a running transaction, or of a commit above the tail, is not stale."""
    held = [lock(OnePart(PART, "")), lock(WholeTable())]
    found = list(judgements.stale_locks(held, {TID: outcome}, tail=TAIL, silent=silent))
    assert [one.part for one in found] == ([PART, None] if stale else [])


@pytest.mark.parametrize(
    ("held", "covered"),
    [
        (OnePart(PART, "y=1"), True),
        (OnePart(PartId("r1-1-2"), "y=1"), False),
        (OnePartition("y=1"), True),
        (OnePartition("y=2"), False),
        (WholeTable(), True),
        (KeyRange(None, None), False),
    ],
)
def test_a_removal_needs_its_lock(held: Scope, covered: bool) -> None:
    """A lock of the same transaction on the part, its partition or its table covers a removal."""
    mark, done = PartRemoval(PART, TABLE, "y=1", TID), PartRemoval(PART, TABLE, "y=1", TID, Csn(12))
    expected = [] if covered else ["mark_without_lock", "removal_without_lock"]
    assert [one.fault for one in judgements.unlocked_removals([mark, done], [lock(held)])] == expected
    of_another = list(judgements.unlocked_removals([mark], [lock(held, OTHER)]))
    assert [one.fault for one in of_another] == ["mark_without_lock"]


@pytest.mark.parametrize(
    ("outcome", "over"),
    [
        (Running(), False),
        (TooOld(Csn(3)), False),
        (Committed(Csn(21)), False),
        (Committed(Csn(20)), True),
        (Aborted(), True),
        (None, True),
    ],
)
def test_what_is_undecided_belongs_to_a_running_transaction(outcome: Outcome | None, over: bool) -> None:
    """A commit that is not applied here yet leaves its rows undecided."""
    found = list(judgements.left_undecided({str(TID): outcome}, Csn(20)))
    assert [one.tid for one in found] == ([str(TID)] if over else [])


def test_rows_that_wait_for_their_rescue_are_named() -> None:
    """A restart would not help them, so the next step is another one."""
    [found] = judgements.left_undecided({str(TID): Aborted()}, Csn(20), {str(TID)})
    assert found.fault == "landing_not_rescued"
    assert not list(judgements.left_undecided({str(TID): Running()}, Csn(20), {str(TID)}))


@pytest.mark.parametrize(
    ("outcome", "labelled", "dangling"),
    [
        (Committed(Csn(7)), Labelled(str(TID), "run"), False),
        (Committed(Csn(7)), None, False),
        (TooOld(Csn(3)), None, False),
        (Committed(Csn(7)), Labelled(str(TID), "another"), True),
        (Committed(Csn(7)), Labelled(str(TID), None), True),
        (Committed(Csn(7)), Labelled(str(TID), "run", 3), True),
        (Running(), None, True),
        (Aborted(), None, True),
        (None, None, True),
    ],
)
def test_a_label_names_its_commit(outcome: Outcome | None, labelled: Labelled | None, dangling: bool) -> None:
    """A label is made in the request that commits, so it never exists without its commit."""
    label = Label(tree.label("run").rpartition("/")[2], str(TID))
    known = {} if labelled is None else {labelled.tid: labelled}
    found = list(judgements.dangling_labels([label], {str(TID): outcome}, known))
    assert [one.znode for one in found] == ([tree.label("run")] if dangling else [])


def test_a_kept_label_has_its_znode() -> None:
    """Without it, or with another transaction in it, a second run would count."""
    label = Label(tree.label("run").rpartition("/")[2], str(TID))
    kept = [Labelled(str(TID), "run")]
    assert not list(judgements.missing_labels(kept, [label]))
    for labels in ([], [Label(label.name, str(OTHER))]):
        (found,) = judgements.missing_labels(kept, labels)
        assert found.fault == "missing_label"


def test_the_label_of_a_stream_may_have_moved_on() -> None:
    """The outcomes were read before the label; but a stream's label moves upwards only."""
    name = tree.label("query").rpartition("/")[2]
    kept = [Labelled(str(TID), "query", 5)]
    assert not list(judgements.missing_labels(kept, [Label(name, str(TID), 5)]))
    assert not list(judgements.missing_labels(kept, [Label(name, str(OTHER), 6)]))
    for batch in (4, 5, None):
        (found,) = judgements.missing_labels(kept, [Label(name, str(OTHER), batch)])
        assert (found.fault, found.expected) == ("missing_label", f"the label 'query', batch 5 of {TID}")


def test_the_label_of_a_stream_that_was_set_back() -> None:
    """It names the transaction of a skipped record, at the batch before."""
    label = Label(tree.label("query").rpartition("/")[2], str(OTHER), 5)
    kept = [Labelled(str(TID), "query", 5)]
    assert not list(judgements.missing_labels(kept, [label], {str(OTHER)}))
    assert not list(judgements.dangling_labels([label], {str(OTHER): Aborted()}, {}, {str(OTHER)}))
    further_back = Label(label.name, str(OTHER), 4)
    assert len(list(judgements.missing_labels(kept, [further_back], {str(OTHER)}))) == 1


def test_a_batch_that_counts_again() -> None:
    """A repeated batch is reported with the batch that had counted before."""
    (found,) = judgements.repeated_batches([(Labelled(str(TID), "query", 5), Csn(9), 6)])
    assert (found.fault, found.tid, found.csn) == ("repeated_batch", str(TID), 9)
    assert (found.expected, found.found) == ("a batch of 'query' above 6", "batch 5")


@pytest.mark.parametrize(
    ("name", "pin", "faults"),
    [
        ("r1-1-1", PinState(Csn(10), 60.0, R1), []),
        ("r1-1-2", PinState(Csn(10), 60.0, R1), ["pin_of_nobody"]),
        ("r2-1-1", PinState(Csn(20), 60.0, R2), []),
        ("r9-1-1", PinState(Csn(10), 60.0, ReplicaId("r9")), ["pin_of_nobody"]),
        ("r2-1-1", PinState(Csn(9), 60.0, R2), ["pin_below_horizon"]),
        ("r2-1-1", PinState(Csn(21), 60.0, R2), ["pin_beyond_end"]),
    ],
)
def test_a_pin_has_an_owner_and_is_kept(name: str, pin: PinState, faults: list[str]) -> None:
    """This replica knows its own pins; the other replicas know theirs."""
    found = judgements.stray_pins(
        {name: pin}, members=[R1, R2], replica=R1, known=["r1-1-1"], horizon=Csn(10), end=Csn(20)
    )
    assert [one.fault for one in found] == faults


EMPTY: dict[str, Any] = {"columns": []}


def changed_at(csn: int) -> dict[str, Any]:
    """Return a definition whose columns were changed at a CSN."""
    former = {"until": csn, "name": "old", "type": "int"}
    column = {"name": "new", "type": "bigint", "since": csn, "was": [{**former, "until": 3}, former]}
    return {"columns": [column], "dropped_at": csn}


@pytest.mark.parametrize(
    ("there", "here", "complete", "differs"),
    [
        (Definition(1, {**EMPTY, "a": 1}), Definition(1, {**EMPTY, "a": 1}, Csn(9)), True, False),
        (Definition(1, {**EMPTY, "a": 1}), Definition(1, {**EMPTY, "a": 2}, Csn(9)), True, True),
        (Definition(1, changed_at(HERE)), Definition(1, changed_at(9), Csn(9)), True, False),
        (Definition(1, changed_at(HERE)), Definition(1, changed_at(8), Csn(9)), True, True),
        (Definition(1, changed_at(8)), Definition(1, changed_at(9), Csn(9)), True, True),
        (Definition(2, EMPTY), Definition(1, EMPTY), True, True),
        (Definition(2, EMPTY), Definition(1, EMPTY), False, False),
        (Definition(0, EMPTY), None, True, True),
        (Definition(0, EMPTY), None, False, False),
        (Definition(1, EMPTY), Definition(2, EMPTY), False, True),
        (None, Definition(0, EMPTY), False, True),
    ],
)
def test_a_table_has_one_definition(
    there: Definition | None, here: Definition | None, complete: bool, differs: bool
) -> None:
    """A catalog may be behind; it is never ahead."""
    found = judgements.differing_tables(
        {TABLE: there} if there else {}, {TABLE: here} if here else {}, complete=complete
    )
    assert [one.table for one in found] == ([TABLE] if differs else [])


def test_a_tag_has_one_csn() -> None:
    """A tag that is moved, one that is missing here, and one that is missing there."""
    there = {"same": Csn(1), "moved": Csn(2), "there": Csn(3)}
    here = {"same": Csn(1), "moved": Csn(9), "here": Csn(4)}
    assert [(one.fault, one.expected, one.found) for one in judgements.differing_tags(there, here)] == [
        ("tag_differs", "no tag here", "tag here of CSN 4"),
        ("tag_differs", "tag moved of CSN 2", "tag moved of CSN 9"),
        ("tag_differs", "tag there of CSN 3", "no tag there"),
    ]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"published": 21}, "progress_ahead"),
        ({"tail_before": 21, "tail": 21}, "tail_ahead"),
        ({"noted_tail": 11}, "tail_behind"),
        ({"noted_horizon": 16}, "horizon_behind"),
    ],
)
def test_nothing_is_promised_beyond_what_is_so(change: dict[str, Any], fault: str | None) -> None:
    """Progress, tail and horizon in ZooKeeper do not exceed those of the catalog."""
    sound = {
        "published": 20, "applied": 20, "tail_before": 10, "tail": 10, "horizon": 15,
        "noted_tail": 10, "noted_horizon": 15,
    }  # fmt: skip
    found = judgements.false_progress(**(sound | change))
    assert [one.fault for one in found] == ([fault] if fault else [])


def test_every_finding_is_explained() -> None:
    """docs/operations.md has a row for each fault that an audit can name, and for no other."""
    page = (
        (ROOT / "docs/operations.md").read_text(encoding="utf-8").split("### Findings")[1].split("\n## ")[0]
    )
    cells = re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)
    shown = {name for cell in cells for name in re.findall("`(.*?)`", cell)}
    sources = [*(ROOT / "replica_agent/audit").glob("*.py"), ROOT / "tidelock/client/reads/audit.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    named = {rule.fault for one in RULE_SETS for rule in one.rules}
    named |= set(re.findall(r'(?:fault=|_difference\(\s*)"(\w+)"', text))
    assert named <= shown
    assert not [name for name in shown if f'"{name}"' not in text]
