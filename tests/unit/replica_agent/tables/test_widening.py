"""Wider types: the pairs that can follow each other, and a value in the pages of both."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.column_defaults import scalar_of
from tidelock.column_types import to_arrow
from tidelock.replica_agent.tables.column_defaults import plain_bytes
from tidelock.replica_agent.tables.widening import is_wider, needs_other_pages, widened

INTEGERS = ("tinyint", "smallint", "int", "bigint")
DECIMALS = (
    "decimal(4,2)",
    "decimal(9,2)",
    "decimal(18,2)",
    "decimal(18,9)",
    "decimal(19,2)",
    "decimal(38,10)",
)
TYPES = (
    *INTEGERS,
    "float",
    "double",
    *DECIMALS,
    "boolean",
    "string",
    "binary",
    "date",
    "timestamp",
    "array<int>",
)


@pytest.mark.parametrize("old", TYPES)
def test_a_wider_type_has_every_value(old: str) -> None:
    """Arrow casts the extremes of a type to each wider one and back; no type is wider than itself."""
    for new in TYPES:
        wider = is_wider(new, old)
        assert not (wider and (new == old or is_wider(old, new)))
        if old in INTEGERS:
            bits = to_arrow(old).bit_width - 1
            extremes = [-(1 << bits), (1 << bits) - 1]
        elif old in DECIMALS:
            digits = to_arrow(old)
            extremes = [Decimal((sign, (9,) * digits.precision, -digits.scale)) for sign in (0, 1)]
        elif old == "float":
            extremes = [3.4028234663852886e38, 1e-45]
        else:
            assert not wider
            continue
        if new in INTEGERS if old in INTEGERS else new in DECIMALS if old in DECIMALS else new == "double":
            values = pa.array(extremes, to_arrow(old))
            try:
                fits = values.cast(to_arrow(new)).cast(to_arrow(old)).equals(values)
            except pa.ArrowInvalid:
                fits = False
            assert wider == (fits and new != old), new
        else:
            assert not wider, new


def test_small_integers_share_their_pages() -> None:
    """All others are written again."""
    small = INTEGERS[:3]
    for old in TYPES:
        for new in TYPES:
            if is_wider(new, old):
                assert needs_other_pages(new, old) == (not {old, new} <= set(small))


@given(st.data())
def test_a_value_in_the_wider_type(data: st.DataObject) -> None:
    """Its bytes are those of the same value."""
    old = data.draw(st.sampled_from((*INTEGERS, "float", *DECIMALS)))
    new = data.draw(st.sampled_from(TYPES).filter(lambda kind: is_wider(kind, old)) if old not in {
        "bigint", "decimal(38,10)"} else st.just(None))  # fmt: skip
    if new is None:
        return
    if old in INTEGERS:
        bits = to_arrow(old).bit_width - 1
        text = str(data.draw(st.integers(-(1 << bits), (1 << bits) - 1)))
        expected = text
    elif old == "float":
        value = data.draw(st.floats(width=32))
        text, expected = repr(value), repr(value)
    else:
        digits = to_arrow(old)
        unscaled = data.draw(st.integers(-(10**digits.precision) + 1, 10**digits.precision - 1))
        sign, figures, _ = Decimal(unscaled).as_tuple()
        text = expected = f"{Decimal((sign, figures, -digits.scale)):f}"
    assert widened(new, old, plain_bytes(old, text)) == plain_bytes(new, expected)
    assert repr(scalar_of(new, expected).as_py()) == repr(scalar_of(old, text).cast(to_arrow(new)).as_py())
