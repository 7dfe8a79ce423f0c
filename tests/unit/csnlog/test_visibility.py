"""Visibility: the function, its SQL and an independent oracle agree on every history."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tidelock.csnlog.core.ids import CSN_IMPORT, Csn, ReplicaId, Tid
from tidelock.csnlog.core.visibility import (
    VISIBLE_SQL,
    PartVersions,
    Replaced,
    adoptable,
    visible,
    visible_args,
)

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
    """Return the parts that a reader sees, by replaying the history, without metadata of parts."""
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
    """Draw transactions in the order of their CSNs, then undecided ones; a part is removed at most once."""
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
    """Return the catalog's metadata of each part. A part added and removed by one transaction is left out."""
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
    # A committed transaction reads no more; own changes are visible only while it is open.
    if any(change.tid == own and change.csn is not None for change in history):
        own = None
    parts = metadata(history)
    seen = {number for number, part in parts.items() if visible(part, Csn(snapshot), own)}
    assert seen == oracle(history, Csn(snapshot), own)
    assert in_sql(parts, visible_args(Csn(snapshot), None if own is None else str(own))) == seen


def in_sql(parts: Mapping[int, PartVersions], args: Mapping[str, Any]) -> set[int]:
    """Return the parts that the catalog shows."""
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
        return {number for (number,) in database.execute(f"SELECT n FROM parts WHERE {VISIBLE_SQL}", args)}
    finally:
        database.close()


def test_a_part_lives_from_its_creation_to_before_its_removal() -> None:
    """Creation is inclusive, removal is exclusive."""
    part = PartVersions(tid(1), Csn(5), tid(2), Csn(8))
    assert [visible(part, Csn(s)) for s in (4, 5, 7, 8, 9)] == [False, True, True, False, False]


def test_an_imported_part_is_visible_from_the_first_snapshot_on() -> None:
    """Imported parts have CSN 1; no part is visible by a lack of metadata."""
    part = PartVersions(tid(1), CSN_IMPORT)
    assert [visible(part, Csn(s)) for s in (0, 1, 2)] == [False, True, True]


def test_an_uncommitted_part_is_seen_by_its_maker_alone() -> None:
    """A transaction sees its own writes, and no other transaction does (I5)."""
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
    """A removal without a remover, before its creation, or of an uncommitted part is refused."""
    with pytest.raises(ValueError, match="part of"):
        PartVersions(tid(1), creation_csn, removal_tid, removal_csn)


# -- merges --------------------------------------------------------------------------------------------------


@dataclass
class Table:
    """A table whose rows are numbers: the rows of each part, and the parts at each CSN."""

    rows: dict[int, frozenset[int]] = field(default_factory=dict)
    parts: dict[int, PartVersions] = field(default_factory=dict)
    merges: list[Replaced] = field(default_factory=list)
    csn: int = 1

    def commit(self, adds: frozenset[int] | None, removes: Collection[int]) -> None:
        """Make a transaction that adds a part with these rows (None: a merge of the removed parts)."""
        self.csn += 1
        made = tid(self.csn)
        if adds is None:
            adds = frozenset().union(*(self.rows[part] for part in removes))
            gone = [self.parts[part] for part in removes]
            self.merges += [
                Replaced(str(made), str(part.creation_tid), part.creation_csn or CSN_IMPORT) for part in gone
            ]
        for part in removes:
            self.parts[part] = replace(self.parts[part], removal_tid=made, removal_csn=Csn(self.csn))
        if adds:
            number = len(self.parts)
            self.rows[number], self.parts[number] = adds, PartVersions(made, Csn(self.csn))

    def alive(self) -> list[int]:
        """Return the parts at the newest CSN."""
        return [
            number for number, part in self.parts.items() if part.creation_csn and part.removal_csn is None
        ]


OWN = Tid(Csn(1), ReplicaId("r2"), 1, 1)


@st.composite
def beside_merges(draw: st.DrawFn) -> tuple[Table, int, set[Tid], frozenset[int]]:
    """Draw a table, the snapshot of an open transaction, its adopted merges, and its rows by a replay.

    It removes visible parts and adds one, at any time; others insert, remove and merge.
    """
    table, fresh, begun = Table(), iter(range(10_000)), 0
    mine: frozenset[int] = frozenset()
    adopted: set[str] = set()
    looked = 0
    steps = st.sampled_from(["insert", "insert", "merge", "merge", "remove", "look", "change"])
    for step in ["insert", *draw(st.lists(steps, max_size=5)), "begin", *draw(st.lists(steps, max_size=14))]:
        free = [part for part in table.alive() if table.parts[part].removal_tid is None]
        some = draw(st.lists(st.sampled_from(free), unique=True, min_size=1, max_size=3)) if free else []
        match step:
            case "insert":
                table.commit(frozenset(next(fresh) for _ in range(draw(st.integers(1, 2)))), [])
            case "merge" if some:
                table.commit(None, some)
            case "remove" if some:
                table.commit(frozenset(), some)
            case "begin":
                begun, looked = table.csn, len(table.merges)
                mine = frozenset().union(*(table.rows[part] for part in table.alive()))
            case "look" | "change" if begun:
                adopted |= adoptable(table.merges[looked:], Csn(begun), adopted)
                looked = len(table.merges)
                if step == "change":
                    tids = {Tid.parse(one) for one in adopted}
                    gone = [part for part in some if visible(table.parts[part], Csn(begun), OWN, tids)]
                    for part in gone:
                        table.parts[part] = replace(table.parts[part], removal_tid=OWN)
                        mine -= table.rows[part]
                    number = len(table.parts)
                    table.rows[number] = frozenset({next(fresh)})
                    table.parts[number] = PartVersions(OWN)
                    mine |= table.rows[number]
    return table, begun, {Tid.parse(one) for one in adopted}, mine


@given(beside_merges())
def test_a_transaction_sees_the_rows_of_its_snapshot_whatever_it_adopts(
    made: tuple[Table, int, set[Tid], frozenset[int]],
) -> None:
    """Function and SQL show each row once, with own changes, like a replay that knows no parts."""
    table, begun, adopted, mine = made
    seen = {number for number, part in table.parts.items() if visible(part, Csn(begun), OWN, adopted)}
    assert sorted(row for part in seen for row in table.rows[part]) == sorted(mine)
    args = visible_args(Csn(begun), str(OWN), [str(one) for one in adopted])
    assert in_sql(table.parts, args) == seen


def test_a_merge_is_adopted_if_all_that_it_took_is_seen() -> None:
    """A merge is adopted if all its inputs are visible, also outputs of adopted merges."""

    def took(merge: str, creation: str, csn: int) -> Replaced:
        return Replaced(merge, creation, Csn(csn))

    replaced = [
        *(took("m1", "a", 3), took("m1", "b", 5)),
        *(took("m2", "m1", 7), took("m2", "c", 2)),
        *(took("m3", "d", 4), took("m3", "late", 6)),
        took("m4", "m3", 9),
        took("m5", "m0", 6),
    ]
    assert adoptable(replaced, Csn(5), ()) == {"m1", "m2"}
    assert adoptable(replaced, Csn(5), {"m0"}) == {"m1", "m2", "m5"}
    assert adoptable(replaced, Csn(6), ()) == {"m1", "m2", "m3", "m4", "m5"}
