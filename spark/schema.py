"""A table's definition as schemas of Spark and Arrow, by the type names in docs/protocol.md#bytes."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import types as spark

from tidelock.errors import UnsupportedTypeError
from tidelock.type_text import Array, Map, Plain, Struct, TypeTree, parse, plain_names
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
#: Spark's time of day; None before 4.1, which has none.
_TIME: type[spark.DataType] | None = getattr(spark, "TimeType", None)
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


def has_times(definition: Fields) -> bool:
    """Return whether a table has times of day, in a column or inside of one."""
    return any("time" in plain_names(parse(column["type"])) for column in definition["columns"])


def arrow_of(definition: Fields) -> pa.Schema:
    """Return the types that a table's columns have in Arrow, and in files."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(definition["arrow_schema"])))


def type_of(text: str, column: str) -> spark.DataType:
    """Return Spark's type for a type name; ``column`` is for the message of UnsupportedTypeError."""
    try:
        return _type_of(parse(text))
    except ValueError:
        raise _unknown(text, column) from None


def _type_of(tree: TypeTree) -> spark.DataType:
    """Return Spark's type; ValueError for a name that this version does not know."""
    match tree:
        case Array(element):
            return spark.ArrayType(_type_of(element))
        case Struct(fields):
            return spark.StructType([spark.StructField(name, _type_of(kind)) for name, kind in fields])
        case Map(key, value):
            return spark.MapType(_type_of(key), _type_of(value))
        case Plain(name):
            return _plain(name)


def _plain(name: str) -> spark.DataType:
    if kind := _TYPES.get(name):
        return kind()
    if name == "time" and _TIME is not None:
        return _TIME()
    if match := _DECIMAL.fullmatch(name):
        return spark.DecimalType(int(match[1]), int(match[2]))
    raise ValueError(name)


def _unknown(text: str, column: str) -> UnsupportedTypeError:
    if _TIME is None and re.search(r"\btime\b", text):
        return UnsupportedTypeError(
            f"column {column} has type {text}, and this Spark has no time of day: read it with Spark 4.1 or "
            "later, or with the client",
            column=column,
        )
    nested = ("array<type>", "struct<name:type,...>", "map<type,type>")
    known = ", ".join([*_TYPES, "time", "decimal(p,s)", *nested])
    return UnsupportedTypeError(
        f"column {column} has type {text!r}; this version of tidelock knows {known}: upgrade it",
        column=column,
    )
