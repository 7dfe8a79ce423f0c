"""Removal locks as values: overlap, cover, names and bytes, requests, conflicts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.results import Aborted, Committed, Running, TooOld
from tidelock.csnlog.core.store import Delete, multi_bytes
from tidelock.errors import CorruptError, UpgradeNeededError
from tidelock.replication.core.lock_rules import (
    LOCKS_PER_MULTI_MAX,
    KeyRange,
    LockAsk,
    LockHolderState,
    LockInfo,
    OnePart,
    OnePartition,
    Scope,
    WholeTable,
    batches,
    conflict,
    covers,
    create_op,
    holder_state,
    may_go,
    overlap,
    read_lock,
    wanted,
    worth_waiting,
)

ORDERS = TableId("d.orders")
TID = Tid(Csn(7), ReplicaId("r1"), 2, 3)
OTHER = Tid(Csn(8), ReplicaId("r2"), 1, 9)

SEGMENT = st.sampled_from(["y=1", "y=2", "m=1"])
PATH = st.lists(SEGMENT, max_size=3).map("/".join)
KEY = st.none() | st.integers(0, 5)
#: A part lies in one partition: of each path there are parts of their own.
PART = st.builds(
    lambda path, number: OnePart(PartId(f"r1-{number}-{int.from_bytes(path.encode())}"), path),
    PATH,
    st.integers(1, 4),
)
SCOPE: st.SearchStrategy[Scope] = st.one_of(
    PART, st.just(WholeTable()), st.builds(OnePartition, PATH), st.builds(KeyRange, KEY, KEY)
)


def part(number: int, path: str = "") -> OnePart:
    """A part."""
    return OnePart(PartId(f"r1-1-{number}"), path)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (part(1), part(1), True),
        (part(1), part(2), False),
        (part(1, "y=1"), WholeTable(), True),
        (part(1, "y=1"), OnePartition("y=1"), True),
        (part(1, "y=1/m=2"), OnePartition("y=1"), True),
        (part(1, "y=10"), OnePartition("y=1"), False),
        (part(1, "y=1"), OnePartition(""), True),
        (OnePartition("y=1"), OnePartition("y=1/m=1"), True),
        (OnePartition("y=1"), OnePartition("y=2"), False),
        (OnePartition("y=1"), WholeTable(), True),
        (WholeTable(), WholeTable(), True),
        (KeyRange(1, 3), KeyRange(3, 4), True),
        (KeyRange(1, 3), KeyRange(4, 5), False),
        (KeyRange(None, 3), KeyRange(2, None), True),
        (KeyRange([1, "b"], [2, "a"]), KeyRange([2, "b"], [3, "a"]), False),
        (KeyRange(1, 2), KeyRange("a", "b"), True),  # nobody knows: so they do
        (KeyRange(1, 2), WholeTable(), False),
        (KeyRange(1, 2), part(1), False),
    ],
)
def test_what_overlaps_does_so_either_way_round(one: Scope, other: Scope, expected: bool) -> None:
    """Overlap is symmetric."""
    assert overlap(one, other) is expected
    assert overlap(other, one) is expected


@given(SCOPE, SCOPE, SCOPE)
def test_who_covers_stands_in_everybodys_way(held: Scope, mine: Scope, theirs: Scope) -> None:
    """A wider lock conflicts with every lock that the covered one conflicts with."""
    if covers(held, mine) and overlap(mine, theirs):
        assert overlap(held, theirs)
    assert covers(held, held)


@given(SCOPE, st.booleans())
def test_a_lock_reads_back(scope: Scope, merge: bool) -> None:
    """A lock reads back from its path and its bytes alone."""
    op = create_op(ORDERS, scope, TID, merge=merge)
    assert read_lock(ORDERS, op.path, op.data) == LockInfo(op.path, ORDERS, scope, TID, merge)


@given(st.text())
def test_a_partition_may_hold_any_character(path: str) -> None:
    """No such character reaches the name of the lock; the names of two transactions differ."""
    paths = [create_op(ORDERS, OnePartition(path), tid, merge=False).path for tid in (TID, OTHER)]
    directory = tree.wide_dir(ORDERS)
    assert all(one.removeprefix(f"{directory}/").replace("-", "").isalnum() for one in paths)
    assert len(set(paths)) == 2


def test_what_is_no_lock_is_refused() -> None:
    """A newer version is distinguished from damage."""
    wide = f"{tree.wide_dir(ORDERS)}/range-00-1-r1-1-1"
    with pytest.raises(UpgradeNeededError):
        read_lock(ORDERS, tree.lock(ORDERS, PartId("r1-1-1")), b'{"v":2,"tid":"1-r1-1-1"}')
    for znode, data in [
        (wide, b'{"v":1,"tid":"1-r1-1-1"}'),
        (tree.lock(ORDERS, PartId("r1-1-1")), b'{"v":1,"tid":"somebody"}'),
        (tree.lock(ORDERS, PartId("r1-1-1")), b"1-r1-1-1"),
    ]:
        with pytest.raises(CorruptError):
            read_lock(ORDERS, znode, data)


def test_what_has_to_be_locked() -> None:
    """A request has neither held locks nor covered ones; its parts are in the order of their ids."""
    ask = LockAsk(ORDERS, {PartId(f"r1-1-{n}"): f"y={n % 2}" for n in (3, 1, 2)}, (OnePartition("y=5"),))
    assert wanted(ask, ()) == ((part(1, "y=1"), part(2, "y=0"), part(3, "y=1")), (OnePartition("y=5"),))
    assert wanted(ask, (OnePartition("y=1"), part(2))) == ((), (OnePartition("y=5"),))
    assert wanted(ask, (WholeTable(),)) == ((), ())
    both = LockAsk(ORDERS, {PartId("r1-1-1"): "y=1"}, (OnePartition("y=1"), OnePartition("y=1/m=1")))
    assert wanted(both, ()) == ((), (OnePartition("y=1"),))


@pytest.mark.parametrize("path", ["locks/d.orders/r1-1-1", "locks/d.orders/" + "x" * 2000])
def test_requests_are_bounded_by_operations_and_bytes(path: str) -> None:
    """By the number of their operations, and by their bytes."""
    ops = [Delete(path, number) for number in range(2500)]
    found = list(batches(ops, 512 * 1024))
    assert [op for batch in found for op in batch] == ops
    assert all(len(batch) <= LOCKS_PER_MULTI_MAX for batch in found)
    assert all(multi_bytes(batch, "/root") < 512 * 1024 for batch in found)
    assert list(batches(ops[:1], 1)) == [tuple(ops[:1])]
    assert not list(batches([], 1))


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Committed(Csn(5)), (LockHolderState.VISIBLE, 5)),
        (Committed(Csn(6)), (LockHolderState.COMMITTED, 6)),
        (TooOld(Csn(4)), (LockHolderState.VISIBLE, 4)),
        (TooOld(Csn(9)), (LockHolderState.COMMITTED, 9)),
        (Aborted(), (LockHolderState.DEAD, CSN_NONE)),
        (Running(), (LockHolderState.LIVE, CSN_NONE)),
    ],
)
def test_what_the_outcome_of_a_holder_means(outcome: object, expected: object) -> None:
    """Each outcome of a holder has its meaning for a statement at CSN 5."""
    assert holder_state(outcome, Csn(5)) == expected  # type: ignore[arg-type]


def test_when_a_lock_may_go() -> None:
    """A lock may be deleted when the tail has passed its CSN; one of an undecided holder only on request."""
    assert not may_go(LockHolderState.COMMITTED, Csn(6), Csn(6), live=True)
    assert may_go(LockHolderState.COMMITTED, Csn(6), Csn(7), live=False)
    assert may_go(LockHolderState.DEAD, CSN_NONE, CSN_NONE, live=False)
    assert [may_go(LockHolderState.LIVE, CSN_NONE, Csn(9), live=live) for live in (True, False)] == [
        True,
        False,
    ]


def lock(scope: Scope, *, merge: bool = False) -> LockInfo:
    """Return a lock of another transaction."""
    return LockInfo("", ORDERS, scope, OTHER, merge)


@pytest.mark.parametrize(
    ("held_by_merge", "found", "merge", "waited_s", "wait_s", "expected"),
    [
        (True, LockHolderState.LIVE, False, 1.0, 0.0, True),
        (True, LockHolderState.LIVE, False, 3.0, 0.0, False),
        (True, LockHolderState.LIVE, False, 3.0, 4.0, True),
        (True, LockHolderState.LIVE, True, 0.0, 9.0, False),
        (True, LockHolderState.COMMITTED, False, 0.0, 9.0, False),
        (False, LockHolderState.LIVE, False, 0.0, 0.0, False),
        (False, LockHolderState.DEAD, False, 1.0, 2.0, True),
    ],
)
def test_only_statements_wait_and_only_for_compactions(
    held_by_merge: bool, found: LockHolderState, merge: bool, waited_s: float, wait_s: float, expected: bool
) -> None:
    """A statement waits for a compaction, at most 2 s here; no other lock is waited for."""
    waits = worth_waiting(
        lock(WholeTable(), merge=held_by_merge),
        found,
        merge=merge,
        waited_s=waited_s,
        wait_s=wait_s,
        merge_wait_s=2.0,
    )
    assert waits is expected


@pytest.mark.parametrize(
    ("scope", "details"),
    [
        (part(4), {"part": "r1-1-4"}),
        (OnePartition("y=1"), {"partition": "y=1"}),
        (KeyRange(1, None), {"keys": [1, None]}),
        (WholeTable(), {}),
    ],
)
def test_a_conflict_says_what_and_who(scope: Scope, details: dict[str, object]) -> None:
    """A conflict names table, part or partition, and holder, with its CSN if it is committed."""
    error = conflict(lock(scope), TID, csn=CSN_NONE)
    assert error.details == {"table": ORDERS, "holder": str(OTHER), "merge": False, **details}
    assert error.retriable
    assert all(text in error.message for text in (ORDERS, str(OTHER), "run it again"))
    committed = conflict(lock(scope, merge=True), TID, csn=Csn(9))
    assert committed.details["csn"] == 9
    assert "compaction" in committed.message
    assert f"at CSN 9, after what {TID} reads" in committed.message
