"""The closed list of column types: those that mean the same in Arrow, Parquet, Spark and DuckDB.

A definition names a type by its Spark name (docs/protocol.md#bytes). Spark cannot read the other types of
Arrow, or reads them as something else (tried with Spark 4.3 and Parquet written by Arrow: timestamp[ns],
time, decimal256, float16 fail; unsigned integers and durations change). A table whose values are on the list
under another type gets that type; the rest is refused, with the type to use instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyarrow import types

from tidelock.errors import BadRequestError, UnsupportedTypeError

DECIMAL_DIGITS_MAX = 38

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
#: The names of all types; decimals have digits.
NAMES: Final = (*_PLAIN, "decimal(p,s)")
#: The types whose values may be NaN, or a zero of either sign.
FLOATING: Final = frozenset({"float", "double"})
_NAME_OF: dict[pa.DataType, str] = {arrow: name for name, arrow in _PLAIN.items()}
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")

#: Types whose values have no single text that every reader parses to the same value, and why.
NO_PARTITION: dict[str, str] = {
    "float": "equal values have several texts",
    "double": "equal values have several texts",
    "binary": "bytes have no text",
    "timestamp": "Spark reads it in the time zone of its session; partition by a date",
    "timestamp_ntz": "its text is not the same everywhere; partition by a date",
}

#: Types whose values have no order, or no equality, that every engine agrees on, and why.
NO_KEY: dict[str, str] = {
    "float": "NaN and -0.0 are equal to different values in different engines",
    "double": "NaN and -0.0 are equal to different values in different engines",
    "binary": "bytes have no order that every engine shares; use their hexadecimal text",
}

#: The column types of types that are not on the list themselves.
_STORED_AS: Final[tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...]] = (
    (types.is_uint8, pa.int16()),
    (types.is_uint16, pa.int32()),
    (types.is_uint32, pa.int64()),
    (types.is_uint64, pa.decimal128(20, 0)),
    (types.is_float16, pa.float32()),
    (types.is_date64, pa.date32()),
    (types.is_large_string, pa.string()),
    (types.is_string_view, pa.string()),
    (types.is_large_binary, pa.binary()),
    (types.is_binary_view, pa.binary()),
    (types.is_fixed_size_binary, pa.binary()),
)

#: The type to use instead, first match wins.
_INSTEAD: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (types.is_time, "int64 (bigint) with microseconds since midnight, or string"),
    (types.is_duration, "int64 (bigint) with microseconds"),
    (types.is_interval, "int64 (bigint) with microseconds, or int32 (int) with months"),
    (types.is_decimal, f"decimal128 with 1 to {DECIMAL_DIGITS_MAX} digits and a scale from 0 to that number"),
    (types.is_null, "the type that the column will hold; a column of nulls only has none"),
    (types.is_nested, "one column for each field, or string with JSON"),
    (lambda arrow: isinstance(arrow, pa.BaseExtensionType), "string, or the plain type of its values"),
)


def to_text(column: str, arrow: pa.DataType) -> str:
    """Return the name of the column type for values of an Arrow type.

    Other layouts of a type are that type. A type without a sign gets the next wider one with a sign, float16
    gets float32, an encoding the type of its values.

    Raises:
        UnsupportedTypeError: No type on the list has its values; the message names the one to use instead.
    """
    column_type = _column_type(arrow)
    if name := _NAME_OF.get(column_type):
        return name
    if types.is_decimal128(column_type) and 0 <= column_type.scale <= column_type.precision:
        return f"decimal({column_type.precision},{column_type.scale})"
    use = next((hint for matches, hint in _INSTEAD if matches(arrow)), "string")
    raise UnsupportedTypeError(
        f"column {column} has type {arrow}, which Arrow, Parquet, Spark and DuckDB do not all read alike; "
        f"use {use}",
        column=column,
        found=str(arrow),
        use=use,
    )


def to_arrow(text: str) -> pa.DataType:
    """Return the Arrow type of a definition's type name; BadRequestError if no type has this name."""
    if arrow := _PLAIN.get(text):
        return arrow
    if match := _DECIMAL.fullmatch(text):
        precision, scale = int(match[1]), int(match[2])
        if 1 <= precision <= DECIMAL_DIGITS_MAX and scale <= precision:
            return pa.decimal128(precision, scale)
    raise BadRequestError(f"{text!r} is not a column type; expected one of {', '.join(NAMES)}", type=text)


def _column_type(arrow: pa.DataType) -> pa.DataType:
    """Return the type on the list that has all values of a type; a type without such a one unchanged.

    Units of time are the exception: a table has microseconds, and :mod:`tidelock.casts` refuses each value of
    another unit that has no equal.
    """
    if isinstance(arrow, pa.JsonType):
        return _column_type(arrow.storage_type)
    if types.is_dictionary(arrow) or types.is_run_end_encoded(arrow):
        return _column_type(arrow.value_type)
    if types.is_timestamp(arrow):
        return pa.timestamp("us", tz=None if arrow.tz is None else "UTC")
    if types.is_decimal(arrow) and arrow.precision <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(arrow.precision, arrow.scale)
    return next((column for same, column in _STORED_AS if same(arrow)), arrow)
