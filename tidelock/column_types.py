"""The closed list of column types: those that mean the same in Arrow, Parquet, Spark and DuckDB.

A definition names a type by its Spark name (docs/protocol.md#bytes). Spark cannot read the other types of
Arrow, or reads them as something else (tried with Spark 4.3 and Parquet written by Arrow: timestamp[ns],
decimal256, float16 fail; unsigned integers and durations change). A table whose values are on the list under
another type gets that type; the rest is refused, with the type to use instead.

Arrays, structs and maps of these types are types too. Nothing inside of them is required: a list, a field or
a value may be null whatever its source says, since Spark's names of types cannot say it for lists, and its
reader takes all of them for nullable. Keys of maps are never null.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import pyarrow as pa
from pyarrow import types

from tidelock.column_names import problem_of, same
from tidelock.errors import BadRequestError, UnsupportedTypeError
from tidelock.type_text import Array, Map, Plain, Struct, TypeTree, depth_of, parse

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
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
#: The names of all types; decimals have digits.
NAMES: Final = (*_PLAIN, "decimal(p,s)", "array<type>", "struct<name:type,...>", "map<type,type>")
#: Most types inside each other, by default; 1: no nested types.
NESTED_DEPTH_MAX: Final = 16
#: Types of other systems, and what holds their values here.
_FOREIGN: Final = {
    "variant": "string, with the check json_valid(column)",
    "json": "string, with the check json_valid(column)",
    "uuid": "string",
}
#: The types whose values may be NaN, or a zero of either sign.
FLOATING: Final = frozenset({"float", "double"})
_NAME_OF: dict[pa.DataType, str] = {arrow: name for name, arrow in _PLAIN.items()}
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")

#: Types whose values have no single text that every reader parses to the same value, and why.
_NO_PARTITION: dict[str, str] = {
    "float": "equal values have several texts",
    "double": "equal values have several texts",
    "binary": "bytes have no text",
    "time": "its text is not the same everywhere; partition by the hour, as an int",
    "timestamp": "Spark reads it in the time zone of its session; partition by a date",
    "timestamp_ntz": "its text is not the same everywhere; partition by a date",
}

#: Types whose values have no order, or no equality, that every engine agrees on, and why.
_NO_KEY: dict[str, str] = {
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
    (types.is_duration, "int64 (bigint) with microseconds"),
    (types.is_interval, "int64 (bigint) with microseconds, or int32 (int) with months"),
    (types.is_decimal, f"decimal128 with 1 to {DECIMAL_DIGITS_MAX} digits and a scale from 0 to that number"),
    (types.is_null, "the type that the column will hold; a column of nulls only has none"),
    (types.is_struct, "a struct with fields"),
    (types.is_nested, "one column for each field, or string with JSON"),
    (lambda arrow: isinstance(arrow, pa.BaseExtensionType), "string, or the plain type of its values"),
)


def is_nested(kind: str) -> bool:
    """Return whether the name of a type is that of an array, a struct or a map."""
    return kind.endswith(">")


def why_no_partition(kind: str) -> str | None:
    """Return why no column of a type can be a partition; None if one can."""
    return "values of several fields have no text" if is_nested(kind) else _NO_PARTITION.get(kind)


def why_no_key(kind: str) -> str | None:
    """Return why no column of a type can be a part of a key; None if one can."""
    return (
        "arrays, structs and maps are no keys; use one of their values"
        if is_nested(kind)
        else _NO_KEY.get(kind)
    )


def why_no_order(kind: str) -> str | None:
    """Return why rows cannot be sorted by a column of a type; None if they can."""
    return "arrays, structs and maps have no order that every engine shares" if is_nested(kind) else None


def to_text(column: str, arrow: pa.DataType, depth_max: int = NESTED_DEPTH_MAX) -> str:
    """Return the name of the column type for values of an Arrow type.

    Other layouts of a type are that type. A type without a sign gets the next wider one with a sign, float16
    gets float32, an encoding the type of its values.

    Raises:
        UnsupportedTypeError: No type on the list has its values; the message names the one to use instead.
    """
    tree = _tree(column, arrow)
    if (found := depth_of(tree)) > depth_max:
        raise UnsupportedTypeError(
            f"column {column} has {found} types inside each other; the limit is {depth_max} "
            "(nested_depth_max): spread them over several columns",
            column=column,
            found=str(arrow),
            use="several columns",
        )
    return str(tree)


@lru_cache(maxsize=4096)
def to_arrow(text: str) -> pa.DataType:
    """Return the Arrow type of a definition's type name; BadRequestError if no type has this name."""
    try:
        tree = parse(text)
        if str(tree) != text:
            raise ValueError(f"a definition writes it as {tree}")  # noqa: TRY301 - as the other reasons
        return _arrow(tree)
    except ValueError as error:
        raise BadRequestError(
            f"{text!r} is not a column type ({error}); expected one of {', '.join(NAMES)}", type=text
        ) from error


def _arrow(tree: TypeTree) -> pa.DataType:
    """Return the Arrow type of a tree; ValueError if it has none."""
    match tree:
        case Plain(name):
            return _plain(name)
        case Array(element):
            return pa.list_(pa.field("element", _arrow(element)))
        case Struct(fields):
            if problem := _problem_of([name for name, _ in fields]):
                raise ValueError(problem)
            return pa.struct([pa.field(name, _arrow(kind)) for name, kind in fields])
        case Map(key, value):
            if problem := _no_map_key(key):
                raise ValueError(f"{key} is no type of keys: {problem}")
            return pa.map_(_arrow(key), _arrow(value))


def _plain(name: str) -> pa.DataType:
    if arrow := _PLAIN.get(name):
        return arrow
    if match := _DECIMAL.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        if 1 <= precision <= DECIMAL_DIGITS_MAX and scale <= precision:
            return pa.decimal128(precision, scale)
    instead = f"; use {_FOREIGN[name]}" if name in _FOREIGN else ""
    raise ValueError(f"there is no type {name}{instead}")


def _tree(column: str, arrow: pa.DataType) -> TypeTree:
    """Return the type that has all values of an Arrow type; UnsupportedTypeError if there is none."""
    column_type = _column_type(arrow)
    if types.is_map(column_type):
        key = _tree(column, column_type.key_type)
        if problem := _no_map_key(key):
            raise _unsupported(column, arrow, f"keys of another type: {problem}")
        return Map(key, _tree(column, column_type.item_type))
    if is_list(column_type):
        return Array(_tree(column, column_type.value_type))
    if types.is_struct(column_type) and column_type.num_fields:
        fields = [column_type.field(number) for number in range(column_type.num_fields)]
        if problem := _problem_of([field.name for field in fields]):
            raise _unsupported(column, arrow, f"other names of fields: {problem}")
        return Struct(tuple((field.name, _tree(column, field.type)) for field in fields))
    if name := _NAME_OF.get(column_type):
        return Plain(name)
    if types.is_decimal128(column_type) and 0 <= column_type.scale <= column_type.precision:
        return Plain(f"decimal({column_type.precision},{column_type.scale})")
    use = next((hint for matches, hint in _INSTEAD if matches(arrow)), "string")
    raise _unsupported(column, arrow, use)


def is_list(arrow: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's layouts of lists; maps are none of them."""
    found = types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow)
    return bool(found or types.is_list_view(arrow) or types.is_large_list_view(arrow))


def _unsupported(column: str, arrow: pa.DataType, use: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"column {column} has type {arrow}, which Arrow, Parquet, Spark and DuckDB do not all read alike; "
        f"use {use}",
        column=column,
        found=str(arrow),
        use=use,
    )


def _problem_of(names: list[str]) -> str | None:
    """Return why a struct cannot have fields of these names; None if it can."""
    doubled = next((name for name, count in Counter(map(same, names)).items() if count > 1), None)
    if doubled is not None:
        return f"a struct has field {doubled} twice (ignoring case)"
    found = ((name, problem_of(name)) for name in names)
    return next((f"the name of field {name!r} {problem}" for name, problem in found if problem), None)


def _no_map_key(key: TypeTree) -> str | None:
    """Return why no map can have keys of a type; None if one can. Binary keys are looked up, not ordered."""
    if not isinstance(key, Plain):
        return "keys are no arrays, structs or maps"
    return _NO_KEY[key.name] if key.name in FLOATING else None


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
    if types.is_time(arrow):
        return pa.time64("us")
    if types.is_decimal(arrow) and arrow.precision <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(arrow.precision, arrow.scale)
    return next((column for same, column in _STORED_AS if same(arrow)), arrow)
