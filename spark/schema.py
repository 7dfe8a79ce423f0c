"""A table's definition as schemas of Spark and Arrow, by the type names in docs/protocol.md#bytes."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import types as spark

from tidelock.errors import UnsupportedTypeError
from tidelock.wire.rows import Fields

_TYPES: Mapping[str, type[spark.DataType]] = {
    "boolean": spark.BooleanType,
    "tinyint": spark.ByteType,
    "smallint": spark.ShortType,
    "int": spark.IntegerType,
    "bigint": spark.LongType,
    "float": spark.FloatType,
    "double": spark.DoubleType,
    "string": spark.StringType,
    "binary": spark.BinaryType,
    "date": spark.DateType,
    "timestamp": spark.TimestampType,
    "timestamp_ntz": spark.TimestampNTZType,
}
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")


def struct_of(definition: Fields) -> spark.StructType:
    """Return the schema of a table, its columns in the order of the definition.

    Raises:
        UnsupportedTypeError: A column has a type that this version does not know, from a newer cluster.
    """
    return spark.StructType(
        [
            spark.StructField(column["name"], type_of(column["type"], column["name"]), column["nullable"])
            for column in definition["columns"]
        ]
    )


def arrow_of(definition: Fields) -> pa.Schema:
    """Return the types that a table's columns have in Arrow, and in files."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(definition["arrow_schema"])))


def type_of(text: str, column: str) -> spark.DataType:
    """Return Spark's type for a type name; ``column`` is for the message of UnsupportedTypeError."""
    if kind := _TYPES.get(text):
        return kind()
    if match := _DECIMAL.fullmatch(text):
        return spark.DecimalType(int(match[1]), int(match[2]))
    known = ", ".join([*_TYPES, "decimal(p,s)"])
    raise UnsupportedTypeError(
        f"column {column} has type {text!r}; this version of tidelock knows {known}: upgrade it",
        column=column,
    )
