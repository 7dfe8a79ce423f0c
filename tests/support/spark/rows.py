"""Rows that Spark writes in tests, by SQL or by Python; Spark's Python workers load this small module."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

import pyarrow as pa

SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("town", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("moment", pa.timestamp("us", "UTC")),
        ("text", pa.string()),
    ]
)
DDL: Final = "id bigint, town string, price decimal(9,2), moment timestamp, text string"
PARTITION_BY: Final = ["town"]
_TOWNS: Final = ("Zürich", "a/b=c", None, "007")
#: A query of the rows with ids in [first, end); each task has rows of all partitions.
QUERY: Final = (
    "SELECT id, CASE id % 4 WHEN 0 THEN 'Zürich' WHEN 1 THEN 'a/b=c' WHEN 3 THEN '007' END AS town, "
    "CAST(id / 4 AS decimal(9, 2)) AS price, timestamp_micros(id) AS moment, "
    "repeat(sha2(CAST(id AS string), 256), 20) AS text FROM range({first}, {end}, 1, {tasks})"
)


def town(number: int) -> str | None:
    """Return the partition of the row with this id."""
    return _TOWNS[number % len(_TOWNS)]


def rows(ids: Iterable[int]) -> pa.RecordBatch:
    """Return the rows of these ids."""
    numbers = list(ids)
    columns = [
        numbers,
        [town(number) for number in numbers],
        [Decimal(number) / 4 for number in numbers],
        numbers,
        [hashlib.sha256(str(number).encode()).hexdigest() * 20 for number in numbers],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
