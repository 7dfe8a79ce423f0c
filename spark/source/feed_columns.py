"""The columns that a change feed adds to those of its table. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa
from pyspark.sql import types as spark

CHANGE_TYPE: Final = "_change_type"
COMMIT_CSN: Final = "_commit_csn"
COMMIT_TIME: Final = "_commit_time"
FIELDS: Final = (
    spark.StructField(CHANGE_TYPE, spark.StringType(), nullable=False),
    spark.StructField(COMMIT_CSN, spark.LongType(), nullable=False),
    spark.StructField(COMMIT_TIME, spark.TimestampType(), nullable=True),
)
_NAMES: Final = frozenset(field.name for field in FIELDS)


@dataclass(frozen=True, slots=True)
class Inserted:
    """What the change feed says of rows that were inserted.

    Attributes:
        csn: The commit.
        time: Its effective time; None where it is not known.
    """

    csn: int
    time: datetime | None

    def column(self, field: pa.Field, rows: int) -> pa.Array:
        """Return one of the added columns."""
        values = {CHANGE_TYPE: "insert", COMMIT_CSN: self.csn, COMMIT_TIME: self.time}
        return pa.repeat(pa.scalar(values[field.name], field.type), rows)


def with_feed(table: spark.StructType) -> spark.StructType:
    """Return the columns of a table's change feed."""
    return spark.StructType([*table.fields, *FIELDS])


def without_feed(schema: spark.StructType) -> spark.StructType:
    """Return those columns of a read that the table has."""
    return spark.StructType([field for field in schema.fields if field.name not in _NAMES])


def require_feed(schema: spark.StructType) -> list[str]:
    """Return what is wrong with the added columns of a read that asks for some of them."""
    known = {field.name: field.dataType for field in FIELDS}
    return [
        f"column {field.name} is {known[field.name].simpleString()}, and not {field.dataType.simpleString()}"
        for field in schema.fields
        if field.name in known and field.dataType != known[field.name]
    ]


def marked(batch: pa.RecordBatch, wanted: pa.Schema, inserted: Inserted | None) -> pa.RecordBatch:
    """Return rows of a table with the columns of the change feed that are wanted, in the order wanted."""
    if inserted is None:
        return batch
    own = set(batch.schema.names)
    arrays = [
        batch.column(field.name) if field.name in own else inserted.column(field, batch.num_rows)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
