"""The closed list of column types: those that mean the same in Arrow, Parquet, Spark and DuckDB.

A definition names a type by its Spark name (docs/protocol.md#bytes). All other types of Arrow are refused,
with the type to use instead, since Spark cannot read them or reads them as something else (tried with Spark
4.3 and Parquet written by Arrow: timestamp[ns], time, decimal256, float16 fail; unsigned integers and
durations change).
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

#: The type to use instead, first match wins. A lambda receives the refused type.
_INSTEAD: tuple[tuple[Callable[[pa.DataType], bool], str | Callable[[pa.DataType], str]], ...] = (
    (types.is_uint8, "int16 (smallint)"),
    (types.is_uint16, "int32 (int)"),
    (types.is_uint32, "int64 (bigint)"),
    (types.is_uint64, "decimal128(20, 0), or int64 (bigint) if the values fit"),
    (types.is_float16, "float32 (float)"),
    (types.is_date64, "date32 (date)"),
    (
        types.is_timestamp,
        lambda t: "timestamp('us', tz='UTC') (timestamp)" if t.tz else "timestamp('us') (timestamp_ntz)",
    ),
    (types.is_time, "int64 (bigint) with microseconds since midnight, or string"),
    (types.is_duration, "int64 (bigint) with microseconds"),
    (types.is_interval, "int64 (bigint) with microseconds, or int32 (int) with months"),
    (types.is_decimal, f"decimal128 with 1 to {DECIMAL_DIGITS_MAX} digits and a scale from 0 to that number"),
    (types.is_fixed_size_binary, "binary"),
    (types.is_null, "the type that the column will hold; a column of nulls only has none"),
    (types.is_dictionary, lambda t: f"{t.value_type}, the type of its values"),
    (types.is_run_end_encoded, lambda t: f"{t.value_type}, the type of its values"),
    (types.is_nested, "one column for each field, or string with JSON"),
    (lambda t: isinstance(t, pa.BaseExtensionType), "string, or the plain type of its values"),
)


def to_text(column: str, arrow: pa.DataType) -> str:
    """Return the name of an Arrow type in a table definition.

    ``large_string``, ``string_view`` and their binary variants are other layouts of the same type: accepted.

    Raises:
        UnsupportedTypeError: The type is not on the list; the message names the one to use instead.
    """
    same = _same_type(arrow)
    if name := _NAME_OF.get(same):
        return name
    if types.is_decimal128(same) and 0 <= same.scale <= same.precision:
        return f"decimal({same.precision},{same.scale})"
    instead = next((hint for matches, hint in _INSTEAD if matches(arrow)), "string")
    use = instead if isinstance(instead, str) else instead(arrow)
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
    known = ", ".join(_PLAIN)
    raise BadRequestError(f"{text!r} is not a column type; expected one of {known}, decimal(p,s)", type=text)


def takes(expected: pa.DataType, found: pa.DataType) -> bool:
    """Return whether values of type ``found`` are accepted for a column of type ``expected``.

    Only a type that cannot change a value is accepted: another layout of the same type, a coarser unit or
    another zone of a timestamp (the same instant), a dictionary of strings, and a column of nulls. Integers
    are not widened: a narrower type is more often a wrong column than a saving.
    """
    if found.equals(expected) or types.is_null(found):
        return True
    if types.is_dictionary(found) and types.is_string(expected):
        found = found.value_type
    found = _same_type(found)
    if types.is_timestamp(expected) and types.is_timestamp(found):
        return found.unit in {"s", "ms", "us"} and (expected.tz is None) == (found.tz is None)
    return bool(found.equals(expected))


def _same_type(arrow: pa.DataType) -> pa.DataType:
    """Return the listed type for another memory layout of it, any other type unchanged."""
    if types.is_large_string(arrow) or types.is_string_view(arrow):
        return pa.string()
    if types.is_large_binary(arrow) or types.is_binary_view(arrow):
        return pa.binary()
    if types.is_decimal32(arrow) or types.is_decimal64(arrow):
        return pa.decimal128(arrow.precision, arrow.scale)
    return arrow
