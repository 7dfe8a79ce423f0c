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
    """The values of the change feed's columns for inserted rows.

    Attributes:
        csn: CSN of the commit.
        time: Effective time of the commit; None if it is not known.
    """

    csn: int
    time: datetime | None

    def column(self, field: pa.Field, rows: int) -> pa.Array:
        """Return one of the feed's columns, for this number of rows."""
        values = {CHANGE_TYPE: "insert", COMMIT_CSN: self.csn, COMMIT_TIME: self.time}
        return pa.repeat(pa.scalar(values[field.name], field.type), rows)


def with_feed(table: spark.StructType) -> spark.StructType:
    """Return the columns of a table's change feed."""
    return spark.StructType([*table.fields, *FIELDS])


def without_feed(schema: spark.StructType) -> spark.StructType:
    """Return the columns of a read without the columns of the change feed."""
    return spark.StructType([field for field in schema.fields if field.name not in _NAMES])


def require_feed(schema: spark.StructType) -> list[str]:
    """Return a description of each change feed column of a schema that has a wrong type."""
    types = {field.name: field.dataType for field in FIELDS}
    return [
        f"column {field.name} is {types[field.name].simpleString()}, and not {field.dataType.simpleString()}"
        for field in schema.fields
        if field.name in types and field.dataType != types[field.name]
    ]


def marked(batch: pa.RecordBatch, wanted: pa.Schema, inserted: Inserted | None) -> pa.RecordBatch:
    """Return rows of a table with the wanted columns of the change feed, in the order of `wanted`."""
    if inserted is None:
        return batch
    own = set(batch.schema.names)
    arrays = [
        batch.column(field.name) if field.name in own else inserted.column(field, batch.num_rows)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
