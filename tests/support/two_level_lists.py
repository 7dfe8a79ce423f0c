"""Parquet files with lists of two levels, as old writers made them; pyarrow writes three levels.

    optional group l (LIST) { repeated int64 array; }
    optional group l (LIST) { repeated group list { required int64 element; } }

Both have the same levels of definition and repetition, so their pages are the same. The footer differs: in
the elements of the schema and in the path of the column (parquet-format, "Backward-compatibility rules").
"""

from __future__ import annotations

import io
import struct
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

#: Names of the repeated field that old writers gave it: parquet-avro, parquet-thrift (for the column `l`).
NAMES: Final = ("array", "l_tuple")
_MARK: Final = b"PAR1"
_FIELD: Final = pa.field("element", pa.int64(), nullable=False)
#: In Thrift's compact protocol: the repeated group, of one child, and the number in it; both end with 0.
_GROUP: Final = b"\x35\x04\x18\x04list\x15\x02\x00"
_ELEMENT: Final = b"\x15\x04\x25\x00\x18\x07element\x00"


def file_of(lists: list[list[int] | None], name: str = "array") -> bytes:
    """Return a file with the columns `n`, the numbers of the rows, and `l`, lists of two levels."""
    table = pa.table({"n": pa.array(range(len(lists)), pa.int64()), "l": pa.array(lists, pa.list_(_FIELD))})
    into = io.BytesIO()
    pq.write_table(table, into, store_schema=False, compression="none")
    data = into.getvalue()
    [length] = struct.unpack("<I", data[-8:-4])
    body, footer = data[: -8 - length], data[-8 - length : -8]
    text = bytes([len(name)]) + name.encode()
    footer = _replaced(footer, _GROUP + _ELEMENT, b"\x15\x04\x25\x04\x18" + text + b"\x00")
    footer = _replaced(footer, b"\x19\x5c", b"\x19\x4c")  # the schema has one element less
    footer = _replaced(footer, b"\x38\x01l\x04list\x07element", b"\x28\x01l" + text)
    return body + footer + struct.pack("<I", len(footer)) + _MARK


def _replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    """Return bytes with one piece, which they have once, replaced by another."""
    assert data.count(old) == 1, f"{old!r} is {data.count(old)} times in the footer"
    return data.replace(old, new)
