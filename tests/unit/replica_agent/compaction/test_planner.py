"""The choice of groups: the bounds that hold for any history of inserts, and the rules one by one. Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId
from tidelock.replica_agent.compaction.planner import (
    GROWTH,
    Candidate,
    Group,
    Limits,
    plan,
    planner_of,
    quiet_in_s,
)

#: A row has 10 bytes; a part of 1,000 rows has target size.
ROW_BYTES = 10
LIMITS = Limits(parts_min=4, parts_max=20, bytes_max=30_000, target_bytes=10_000, quiet_s=100.0)

_numbers = itertools.count(1)


def part(
    rows: int, path: str = "", *, age_s: float = 0.0, row_bytes: int = ROW_BYTES, era: int = 0
) -> Candidate:
    """A part that is newer than all before it."""
    number = next(_numbers)
    return Candidate(PartId(f"r1-1-{number}"), path, rows, rows * row_bytes, Csn(number), age_s, era)


def merged(parts: Iterable[Candidate], groups: Iterable[Group]) -> list[Candidate]:
    """The parts after the groups: each made one."""
    gone = {name for group in groups for name in group.parts}
    kept = [item for item in parts if item.part not in gone]
    eras = {item.part: item.era for item in parts}
    return kept + [part(group.rows, group.path, era=eras[group.parts[0]]) for group in groups]


def until_done(
    parts: Sequence[Candidate], limits: Limits = LIMITS, *, thorough: bool = False
) -> list[Candidate]:
    """Merge until nothing is worth it."""
    left = list(parts)
    while groups := plan(left, limits, thorough=thorough):
        assert len(merged(left, groups)) < len(left)
        left = merged(left, groups)
    return left


_paths = st.sampled_from(["", "y=1", "y=2"])
_parts = st.lists(
    st.builds(
        lambda rows, path, age, width, era: part(rows, path, age_s=age, row_bytes=width, era=era),
        st.integers(1, 2000),
        _paths,
        st.floats(0, 300),
        st.sampled_from([1, 10, 100]),
        st.sampled_from([0, 0, 1, 2]),
    ),
    max_size=60,
)
_histories = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(1, 1500), _paths), min_size=1, max_size=12), st.booleans()),
    max_size=25,
)


@given(_parts, st.booleans())
def test_groups_are_disjoint_and_stay_in_their_partition(parts: list[Candidate], thorough: bool) -> None:
    """No part is in two groups; a group has parts of one partition, in their order, and keeps the limits."""
    groups = plan(parts, LIMITS, thorough=thorough)
    alone = [plan([p for p in parts if p.era == era], LIMITS, thorough=thorough) for era in range(3)]
    assert {group.parts for group in groups} == {group.parts for found in alone for group in found}
    by_name = {item.part: item for item in parts}
    assert max(Counter(name for group in groups for name in group.parts).values(), default=1) == 1
    for group in groups:
        taken = [by_name[name] for name in group.parts]
        assert {item.path for item in taken} == {group.path}
        assert len({item.era for item in taken}) == 1
        assert [item.csn for item in taken] == sorted(item.csn for item in taken)
        assert (group.rows, group.length) == (sum(p.rows for p in taken), sum(p.length for p in taken))
        assert 2 <= len(taken) <= LIMITS.parts_max
        assert group.length <= LIMITS.bytes_max
        assert all(item.length < LIMITS.target_bytes for item in taken)


@given(_parts)
def test_a_group_is_twice_as_large_as_its_largest_part(parts: list[Candidate]) -> None:
    """This bounds how often a row is rewritten: each time its part has twice the rows."""
    rows = {item.part: item.rows for item in parts}
    for group in plan(parts, LIMITS):
        assert group.rows >= GROWTH * max(rows[name] for name in group.parts)


@given(_histories)
def test_any_history_of_inserts_leaves_few_parts_for_little_work(
    history: list[tuple[list[tuple[int, str]], bool]],
) -> None:
    """For any inserts at any time, each row is rewritten at most log2 n times, and few parts are left."""
    parts: list[Candidate] = []
    rewritten = {"": 0, "y=1": 0, "y=2": 0}
    inserted = dict.fromkeys(rewritten, 0)
    for inserts, planned in history:
        for rows, path in inserts:
            parts.append(part(rows, path))
            inserted[path] += rows
        while planned and (groups := plan(parts, LIMITS)):
            for group in groups:
                rewritten[group.path] += group.rows
            parts = merged(parts, groups)
    parts = until_done(parts)
    for path, rows in inserted.items():
        assert sum(item.rows for item in parts if item.path == path) == rows
        assert rewritten[path] <= rows * math.log2(max(rows, 2))
        left = [item for item in parts if item.path == path and item.length < LIMITS.target_bytes]
        assert len(left) < LIMITS.parts_min + math.log2(max(rows, 2)) + 1


@given(_parts)
def test_thorough_merges_leave_one_small_part_in_each_partition(parts: list[Candidate]) -> None:
    """An operator's request ends, and leaves at most one part below target size in each era."""
    left = until_done(parts, thorough=True)
    small = Counter((item.path, item.era) for item in left if item.length < LIMITS.target_bytes)
    assert all(count == 1 for count in small.values())
    assert sum(item.rows for item in left) == sum(item.rows for item in parts)


def test_two_thousand_small_inserts_become_few_parts() -> None:
    """With the defaults, 2,000 inserts of 100 rows leave a handful of parts, each row rewritten thrice."""
    limits = Limits(parts_min=8, parts_max=500, bytes_max=512 << 20, target_bytes=128 << 20, quiet_s=600.0)
    parts: list[Candidate] = []
    rewritten = 0
    for count in range(1, 2001):
        parts.append(part(100, row_bytes=50))
        if count % 100 == 0:  # a check after so many inserts
            while groups := plan(parts, limits):
                rewritten += sum(group.rows for group in groups)
                parts = merged(parts, groups)
    assert len(parts) <= 8
    assert rewritten / 200_000 < 5


def test_few_parts_wait_for_more() -> None:
    """Fewer small parts than the least number are not merged."""
    assert plan([part(10) for _ in range(3)], LIMITS) == []
    assert [group.rows for group in plan([part(10) for _ in range(4)], LIMITS)] == [40]


def test_a_large_part_is_not_rewritten_for_a_few_rows() -> None:
    """A part joins a merge only when the others have as many rows."""
    few = [part(10) for _ in range(4)]
    assert [len(group.parts) for group in plan([*few, part(500)], LIMITS)] == [4]
    assert [len(group.parts) for group in plan([*few, part(40)], LIMITS)] == [5]


def test_a_quiet_partition_is_finished_up() -> None:
    """Two parts suffice when no part was added for long; until then the time of the next check is known."""
    pair = [part(10, age_s=150.0), part(10, age_s=60.0)]
    assert plan(pair, LIMITS) == []
    assert quiet_in_s(pair, LIMITS) == pytest.approx(40.0)
    old = [msgspec.structs.replace(item, age_s=item.age_s + 41.0) for item in pair]
    assert [group.rows for group in plan(old, LIMITS)] == [20]
    assert quiet_in_s(old, LIMITS) is None


def test_two_parts_that_fill_one_are_merged() -> None:
    """Parts that together have target size need no company."""
    assert [group.rows for group in plan([part(600), part(600)], LIMITS)] == [1200]


def test_parts_of_target_size_are_left_alone() -> None:
    """They are never merged, for any number of them and any request."""
    large = [part(1000) for _ in range(50)]
    assert plan(large, LIMITS) == []
    assert plan(large, LIMITS, thorough=True) == []


def test_more_than_a_group_holds_makes_several() -> None:
    """The limits of a group leave no part behind: all is merged at once."""
    groups = plan([part(10) for _ in range(50)], LIMITS)
    assert sorted(len(group.parts) for group in groups) == [10, 20, 20]


def test_the_fullest_partition_comes_first() -> None:
    """It is the one that slows queries and inserts."""
    parts = [part(10, "y=1") for _ in range(4)] + [part(10, "y=2") for _ in range(9)]
    assert [group.path for group in plan(parts, LIMITS)] == ["y=2", "y=1"]


@given(st.sets(st.sampled_from("abcdefg"), min_size=1), st.text("xyz", min_size=1, max_size=6))
def test_all_agree_on_the_planner_of_a_table(names: set[str], table: str) -> None:
    """The order of the member list does not matter; a replica that leaves changes its own tables only."""
    members = [ReplicaId(name) for name in sorted(names)]
    chosen = planner_of(TableId(table), members)
    assert chosen == planner_of(TableId(table), reversed(members))
    for gone in members:
        rest = [name for name in members if name != gone]
        expected = chosen if chosen != gone else planner_of(TableId(table), rest)
        assert planner_of(TableId(table), rest) == expected


def test_tables_spread_over_the_members() -> None:
    """No replica plans all tables."""
    members = [ReplicaId(name) for name in ("r1", "r2", "r3")]
    tables = [TableId(f"default.t{number}") for number in range(300)]
    counts = Counter(planner_of(table, members) for table in tables)
    assert all(counts[member] > 60 for member in members)
    assert planner_of(tables[0], []) is None
