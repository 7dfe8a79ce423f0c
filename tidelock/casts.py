"""Casts of values to the type of a column that lose nothing. Pure.

Rows come as their source has them: integers of another width or without a sign, whole numbers as floats,
timestamps in seconds or nanoseconds, categories. A value is taken if the column's type has the same value,
and refused with its row otherwise. Arrow's own checks are used where they are exact; two casts that Arrow
does without a check, to float and from timestamp to date, are made backwards and compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

#: The largest scale of a decimal that every integer can take on the way to it.
_WIDE_DIGITS: Final = 76


class LossyCastError(ValueError):
    """A value has no equal of the wanted type.

    Attributes:
        index: Its position among the values.
        text: The value, as text.
    """

    def __init__(self, index: int, text: str) -> None:
        super().__init__(f"value {index}, {text}, would be lost")
        self.index = index
        self.text = text


def may_fit(expected: pa.DataType, found: pa.DataType) -> bool:
    """Return whether values of type ``found`` may have an equal of the column type ``expected``.

    Numbers are not read from text, and nothing is written as text. A timestamp with a zone is never taken for
    one without, since that is another moment in every zone. Decimals are not made of floats, nor floats of
    decimals: one half has an equal, one tenth has none.
    """
    found = plain(found)
    if types.is_null(found) or found.equals(expected):
        return True
    if types.is_timestamp(found) and types.is_timestamp(expected):
        return (found.tz is None) == (expected.tz is None)
    return any(is_source(found) and is_target(expected) for is_source, is_target in _FAMILIES)


def cast(values: pa.Array, expected: pa.DataType) -> pa.Array:
    """Return the values as a column type; their type has passed :func:`may_fit`.

    Raises:
        LossyCastError: A value has no equal of that type.
    """
    values = _decoded(values)
    if values.type.equals(expected):
        return values
    try:
        done = _checked(values, expected)
    except pa.ArrowInvalid:
        index = _first_refused(values, expected)
    else:
        if not _loses_unseen(expected, values.type):
            return done
        kept = pc.equal(_cast(done, values.type), values)
        if types.is_floating(expected):
            kept = pc.or_(kept, pc.is_nan(values))
        if (index := pc.index(kept, False).as_py()) < 0:
            return done
    raise LossyCastError(index, _text(values[index : index + 1]))


def plain(arrow: pa.DataType) -> pa.DataType:
    """Return the type of the values behind an encoding: of a dictionary, of runs, of an extension type."""
    while True:
        if types.is_dictionary(arrow) or types.is_run_end_encoded(arrow):
            arrow = arrow.value_type
        elif isinstance(arrow, pa.BaseExtensionType):
            arrow = arrow.storage_type
        else:
            return arrow


def _decoded(values: pa.Array) -> pa.Array:
    while not values.type.equals(plain(values.type)):
        if types.is_dictionary(values.type):
            values = values.dictionary_decode()
        elif types.is_run_end_encoded(values.type):
            values = pc.run_end_decode(values)
        else:
            values = values.storage
    return values


def _is_text(arrow: pa.DataType) -> bool:
    return bool(types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow))


def _is_bytes(arrow: pa.DataType) -> bool:
    found = types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_binary_view(arrow)
    return bool(found or types.is_fixed_size_binary(arrow))


def _is_naive(arrow: pa.DataType) -> bool:
    return bool(types.is_timestamp(arrow) and arrow.tz is None)


def _is_number(arrow: pa.DataType) -> bool:
    return bool(types.is_integer(arrow) or types.is_floating(arrow) or types.is_decimal(arrow))


def _is_integer_or_float(arrow: pa.DataType) -> bool:
    return bool(types.is_integer(arrow) or types.is_floating(arrow))


def _is_integer_or_decimal(arrow: pa.DataType) -> bool:
    return bool(types.is_integer(arrow) or types.is_decimal(arrow))


_Family = Callable[[pa.DataType], bool]

#: Types with values in common: those of the rows, and those of the columns that may take them.
_FAMILIES: Final[tuple[tuple[_Family, _Family], ...]] = (
    (types.is_integer, _is_number),
    (types.is_floating, _is_integer_or_float),
    (types.is_decimal, _is_integer_or_decimal),
    (_is_text, _is_text),
    (_is_bytes, _is_bytes),
    (types.is_date, types.is_date),
    (types.is_date, _is_naive),
    (_is_naive, types.is_date),
)


def _loses_unseen(expected: pa.DataType, found: pa.DataType) -> bool:
    """Return whether Arrow makes this cast without an error for a value that has no equal."""
    if types.is_floating(found) and types.is_floating(expected):
        return bool(expected.bit_width < found.bit_width)
    return bool(types.is_timestamp(found) and types.is_date(expected))


def _checked(values: pa.Array, expected: pa.DataType) -> pa.Array:
    """Cast as Arrow does; ArrowInvalid for a value that does not fit, as far as Arrow checks that."""
    if types.is_integer(values.type) and types.is_decimal(expected):
        # Arrow refuses any decimal in which some integer of that width has no room.
        values = values.cast(pa.decimal256(_WIDE_DIGITS, expected.scale))
    elif types.is_decimal32(values.type) or types.is_decimal64(values.type):
        # Arrow compares with the bounds of the integer, for which these have no room.
        values = values.cast(pa.decimal128(values.type.precision, values.type.scale))
    return values.cast(expected)


def _cast(values: pa.Array, to: pa.DataType) -> pa.Array:
    return pc.cast(values, to, safe=False)


def _first_refused(values: pa.Array, expected: pa.DataType) -> int:
    """Return the position of the first value that Arrow refuses; there is one."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _checked(values[low:middle], expected)
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    return low


def _text(value: pa.Array) -> str:
    return str(_cast(value, pa.string())[0].as_py())
