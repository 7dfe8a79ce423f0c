"""Ranges of unique keys: equal keys are never in disjoint ranges, for any type."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.replica_agent.tables.key_ranges import part_range, range_of
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.tables.statistics import TEXT_MAX
from tidelock.replication.core.lock_rules import KeyRange, overlap
from tidelock.table_columns import Column

KINDS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "date": st.integers(-(2**31), 2**31 - 1),
    "decimal(38,10)": st.decimals(
        Decimal(-9999999999999999999999999999), Decimal(9999999999999999999999999999), places=10
    ),
    "string": st.text()
    | st.text(alphabet="ab\U0010ffff\ud7ff", min_size=TEXT_MAX - 1, max_size=TEXT_MAX + 2),
}


def travelled(keys: KeyRange) -> KeyRange:
    """Return the range after a round trip through a lock's JSON."""
    return KeyRange(*json.loads(json.dumps([keys.low, keys.high])))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_range_contains_its_values(kind: str, data: st.DataObject) -> None:
    """Two ranges that share a value overlap; two that are apart do not, where the bounds are exact."""
    column = Column("k", kind, nullable=False)
    values = sorted(data.draw(st.lists(KINDS[kind], min_size=3, max_size=3)))
    low, middle, high = values
    first, second = travelled(range_of(column, (low, middle))), travelled(range_of(column, (middle, high)))
    assert overlap(first, second)
    below, above = travelled(range_of(column, (low, low))), travelled(range_of(column, (high, high)))
    exact = kind != "string" or max(len(low), len(high)) <= TEXT_MAX
    if low < high and exact:
        assert not overlap(below, above)


def test_long_texts_open_the_range() -> None:
    """A long text bounds from below by its beginning, from above not at all."""
    column = Column("k", "string", nullable=False)
    assert range_of(column, ("x" * 100, "y" * 100)) == KeyRange("x" * TEXT_MAX, None)
    assert range_of(column, None) == KeyRange(None, None)


def test_parts_tell_their_ranges() -> None:
    """By the folder of a partition column, else by statistics; unknown means all keys."""
    arrow = pa.schema(
        [pa.field("d", pa.date32(), False), pa.field("k", pa.decimal128(4, 2), False), ("v", pa.int8())]
    )

    def table(key: str) -> TableSchema:
        return TableSchema.from_request("t", arrow, ["d"], properties={"unique_key": key})

    day = (dt.date(2024, 2, 1) - dt.date(1970, 1, 1)).days
    assert part_range(table("d,k"), "d=2024-02-01", None) == KeyRange(day, day)
    statistics = {"k": ["-1.50", "2.25", 0]}
    assert part_range(table("k,d"), "d=2024-02-01", statistics) == KeyRange("09850", "10225")
    assert part_range(table("k,d"), "d=2024-02-01", {"k": [None, None, 0]}) == KeyRange(None, None)
    assert part_range(table("k,d"), "d=2024-02-01", None) == KeyRange(None, None)
