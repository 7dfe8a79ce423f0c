"""Random arrays, structs and maps: types of tables, and rows of them, with nulls and NaN at every depth."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import types

from tests.support.rows import ALL_TYPES, EXTREMES
from tidelock.column_types import to_arrow

_NAMES: Final = st.sampled_from(["a", "B", "ü b", "x.y", "`", "list", "key_value"])
_LEAVES: Final = [
    name for name in ALL_TYPES if name != "c_timestamp"
]  # Python's times lose their zone inside
_KEYS: Final = ["c_string", "c_bigint", "c_date", "c_boolean", "c_decimal"]


def nested_types(depth: int = 3) -> st.SearchStrategy[pa.DataType]:
    """Types of columns, as definitions name them, of which at most so many are inside each other."""
    leaf = st.sampled_from(_LEAVES).map(ALL_TYPES.__getitem__)
    if depth == 1:
        return leaf
    inner = st.deferred(lambda: nested_types(depth - 1))
    fields = st.dictionaries(_NAMES, inner, min_size=1, max_size=3)
    keys = st.sampled_from(_KEYS).map(ALL_TYPES.__getitem__)
    return st.one_of(
        leaf,
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        fields.map(lambda found: pa.struct(list(found.items()))),
        st.tuples(keys, inner).map(lambda pair: pa.map_(*pair)),
    )


def values_of(arrow: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, in Python, with nulls at every depth."""
    if types.is_list(arrow):
        found: st.SearchStrategy[Any] = st.lists(values_of(arrow.value_type), max_size=3)
    elif types.is_struct(arrow):
        found = st.fixed_dictionaries({field.name: values_of(field.type) for field in arrow})
    elif types.is_map(arrow):
        keys = values_of(arrow.key_type).filter(lambda key: key is not None)
        pairs = st.tuples(keys, values_of(arrow.item_type))
        found = st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
    else:
        found = st.sampled_from(EXTREMES[next(name for name, kind in ALL_TYPES.items() if kind == arrow)])
    return st.none() | found


@st.composite
def nested_batches(draw: st.DrawFn, columns: int = 2, rows_max: int = 8) -> pa.RecordBatch:
    """Record batches with columns `c0`, `c1`, ... of random types."""
    kinds = [draw(nested_types()) for _ in range(columns)]
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    row = st.fixed_dictionaries({field.name: values_of(field.type) for field in schema})
    return pa.RecordBatch.from_pylist(draw(st.lists(row, min_size=1, max_size=rows_max)), schema=schema)


def meaning(rows: pa.Table | pa.RecordBatch) -> list[str]:
    """Return a text for each row, which differs for each two values that differ: NaN, -0.0, null, empty."""
    return [repr(row) for row in rows.to_pylist()]


#: A type with everything in it, and rows of it.
DEEP: Final = (
    "struct<a:bigint,`b c`:array<struct<d:double,t:array<string>>>,"
    "m:map<string,array<float>>,e:decimal(38,2)>"
)
DEEP_ARROW: Final = to_arrow(DEEP)
