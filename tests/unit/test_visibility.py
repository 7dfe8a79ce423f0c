"""Visibility: the function, its SQL and an independent oracle agree on every history."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.csnlog.ids import CSN_IMPORT, Csn, ReplicaId, Tid
from tidelock.csnlog.visibility import VISIBLE_SQL, PartVersions, visible

HOME = ReplicaId("r1")


def tid(counter: int) -> Tid:
    """A tid of the one home of these histories."""
    return Tid(Csn(1), HOME, 1, counter)


@dataclass(frozen=True)
class Change:
    """One transaction of a history: what it adds and removes, and its CSN if it committed."""

    tid: Tid
    csn: Csn | None
    adds: frozenset[int]
    removes: frozenset[int]


def oracle(history: list[Change], snapshot: Csn, own: Tid | None) -> set[int]:
    """The parts that a reader sees, by replaying the history: no metadata of parts is involved."""
    seen: set[int] = set()
    for change in sorted((c for c in history if c.csn is not None), key=lambda c: c.csn or 0):
        if change.csn is not None and change.csn <= snapshot:
            seen = (seen | change.adds) - change.removes
    for change in history:
        if change.tid == own:
            seen = (seen | change.adds) - change.removes
    return seen


@st.composite
def histories(draw: st.DrawFn) -> list[Change]:
    """Transactions in the order of their CSNs, then undecided ones; a part is removed at most once."""
    alive: set[int] = set()
    history: list[Change] = []
    parts = 0
    for number in range(1, draw(st.integers(1, 6)) + 1):
        adds = frozenset(range(parts, parts + draw(st.integers(0, 3))))
        parts += len(adds)
        candidates = sorted(alive | adds)
        removes = frozenset(draw(st.sets(st.sampled_from(candidates))) if candidates else ())
        alive = (alive | adds) - removes
        history.append(Change(tid(number), Csn(10 * number), adds, removes))
    for number in range(100, 100 + draw(st.integers(0, 2))):
        adds = frozenset(range(parts, parts + draw(st.integers(0, 2))))
        parts += len(adds)
        candidates = sorted(alive | adds)
        removes = frozenset(draw(st.sets(st.sampled_from(candidates))) if candidates else ())
        alive -= removes
        history.append(Change(tid(number), None, adds, removes))
    return history


def metadata(history: list[Change]) -> dict[int, PartVersions]:
    """What a catalog holds of each part. A part that one transaction adds and removes is never announced."""
    found: dict[int, PartVersions] = {}
    for change in history:
        for part in change.adds - change.removes:
            found[part] = PartVersions(change.tid, change.csn)
        for part in change.removes - change.adds:
            created = found[part]
            found[part] = PartVersions(created.creation_tid, created.creation_csn, change.tid, change.csn)
    return found


@given(histories(), st.integers(0, 80), st.sampled_from([None, *(tid(n) for n in (1, 2, 5, 100, 101, 999))]))
def test_function_sql_and_oracle_agree(history: list[Change], snapshot: int, own: Tid | None) -> None:
    """At every snapshot, inside and outside of every transaction, all three show the same parts."""
    # A committed transaction reads no more; its own view is its snapshot's business only while it is open.
    if any(change.tid == own and change.csn is not None for change in history):
        own = None
    parts = metadata(history)
    seen = {number for number, part in parts.items() if visible(part, Csn(snapshot), own)}
    assert seen == oracle(history, Csn(snapshot), own)

    database = sqlite3.connect(":memory:")
    try:
        database.execute("CREATE TABLE parts (n, creation_tid, creation_csn, removal_tid, removal_csn)")
        database.executemany(
            "INSERT INTO parts VALUES (?, ?, ?, ?, ?)",
            [
                (
                    number,
                    str(part.creation_tid),
                    part.creation_csn,
                    None if part.removal_tid is None else str(part.removal_tid),
                    part.removal_csn,
                )
                for number, part in parts.items()
            ],
        )
        rows = database.execute(
            f"SELECT n FROM parts WHERE {VISIBLE_SQL}",
            {"s": snapshot, "own": None if own is None else str(own)},
        )
        assert {number for (number,) in rows} == seen
    finally:
        database.close()


def test_a_part_lives_from_its_creation_to_before_its_removal() -> None:
    """Creation is inclusive, removal is exclusive."""
    part = PartVersions(tid(1), Csn(5), tid(2), Csn(8))
    assert [visible(part, Csn(s)) for s in (4, 5, 7, 8, 9)] == [False, True, True, False, False]


def test_an_imported_part_is_visible_from_the_first_snapshot_on() -> None:
    """Imports carry CSN 1 explicitly; nothing is visible by lack of metadata."""
    part = PartVersions(tid(1), CSN_IMPORT)
    assert [visible(part, Csn(s)) for s in (0, 1, 2)] == [False, True, True]


def test_an_uncommitted_part_is_seen_by_its_maker_alone() -> None:
    """Own writes are visible to the transaction that made them (I5)."""
    part = PartVersions(tid(1))
    assert visible(part, Csn(9), tid(1))
    assert not visible(part, Csn(9), tid(2))
    assert not visible(part, Csn(9))


def test_an_uncommitted_removal_hides_a_part_from_its_remover_alone() -> None:
    """A removal that is not committed hides the part only inside its transaction."""
    part = PartVersions(tid(1), Csn(5), tid(2))
    assert not visible(part, Csn(9), tid(2))
    assert visible(part, Csn(9), tid(3))
    assert visible(part, Csn(9))


@pytest.mark.parametrize(
    ("creation_csn", "removal_tid", "removal_csn"),
    [(Csn(5), None, Csn(6)), (None, tid(2), Csn(6)), (Csn(5), tid(2), Csn(5)), (Csn(5), tid(2), Csn(4))],
)
def test_impossible_metadata_is_corruption(
    creation_csn: Csn | None, removal_tid: Tid | None, removal_csn: Csn | None
) -> None:
    """A removal without a remover, before a creation or of an uncommitted part is refused, never shown."""
    with pytest.raises(ValueError, match="part of"):
        PartVersions(tid(1), creation_csn, removal_tid, removal_csn)
