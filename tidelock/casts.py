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

from tidelock.column_names import same
from tidelock.column_types import is_list

#: The largest scale of a decimal that every integer can take on the way to it.
_WIDE_DIGITS: Final = 76
#: The types of the values of dictionaries of views, once they are decoded.
_VIEWED: Final = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
#: Fields of the structs that are the pairs of a map.
_OF_A_PAIR: Final = 2


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
    decimals: one half has an equal, one tenth has none. A list of pairs may be a map. A struct may
    lack fields, which are null then, and have them in another order.
    """
    found = plain(found)
    if types.is_null(found) or found.equals(expected):
        return True
    if types.is_map(expected):
        pair = _pair(found)
        return (
            pair is not None and may_fit(expected.key_type, pair[0]) and may_fit(expected.item_type, pair[1])
        )
    if is_list(expected):
        return is_list(found) and may_fit(expected.value_type, found.value_type)
    if types.is_struct(expected):
        known = {field.name: field.type for field in expected}
        return types.is_struct(found) and all(
            field.name in known and may_fit(known[field.name], field.type) for field in found
        )
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
    if types.is_null(values.type):
        return pa.nulls(len(values), expected)
    if types.is_nested(expected):
        return _nested(values, expected)
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


def decoded_type(arrow: pa.DataType) -> pa.DataType:
    """Return a type with the values of dictionaries in their place, at any depth."""
    if types.is_dictionary(arrow):
        return decoded_type(_VIEWED.get(arrow.value_type, arrow.value_type))
    if types.is_map(arrow):
        return pa.map_(
            decoded_type(arrow.key_type), arrow.item_field.with_type(decoded_type(arrow.item_type))
        )
    if types.is_struct(arrow):
        return pa.struct([field.with_type(decoded_type(field.type)) for field in arrow])
    if is_list(arrow):
        item = arrow.value_field.with_type(decoded_type(arrow.value_type))
        return arrow if item.type == arrow.value_type else pa.large_list(item)
    return arrow


def equal_but_nulls(found: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether two types are equal but for which values inside of them may be null."""
    if types.is_map(expected):
        return types.is_map(found) and all(
            equal_but_nulls(one, other)
            for one, other in ((found.key_type, expected.key_type), (found.item_type, expected.item_type))
        )
    if types.is_list(expected):
        return types.is_list(found) and equal_but_nulls(found.value_type, expected.value_type)
    if types.is_struct(expected):
        return (
            types.is_struct(found)
            and [field.name for field in found] == [field.name for field in expected]
            and all(equal_but_nulls(one.type, other.type) for one, other in zip(found, expected, strict=True))
        )
    return bool(found.equals(expected))


def as_stored(found: pa.DataType) -> pa.DataType:
    """Return a type as Parquet stores it, whatever layout in memory the writer of a file has noted.

    Arrow notes in a file that its texts were views, its lists large, its values codes of a dictionary, or its
    instants those of a zone. The bytes of the file are the same without that. Views of lists stay: a file
    that says so is read as such, and nothing that follows takes them.
    """
    if types.is_dictionary(found):
        return as_stored(found.value_type)
    if types.is_map(found):
        return pa.map_(as_stored(found.key_type), as_stored(found.item_type))
    if types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found):
        return pa.list_(as_stored(found.value_type))
    if types.is_struct(found):
        return pa.struct([field.with_type(as_stored(field.type)) for field in found])
    if types.is_timestamp(found) and found.tz is not None:
        return pa.timestamp(found.unit, "UTC")
    if types.is_large_string(found) or types.is_string_view(found):
        return pa.string()
    if types.is_large_binary(found) or types.is_binary_view(found):
        return pa.binary()
    return found


def surplus_field(found: pa.DataType, expected: pa.DataType) -> str | None:
    """Return a field of a struct, at any depth, that an expected type does not have; None without one."""
    if types.is_struct(found) and types.is_struct(expected):
        known = {same(field.name): field.type for field in expected}
        for field in found:
            if same(field.name) not in known:
                return str(field.name)
        inner = [(field.type, known[same(field.name)]) for field in found]
    elif is_list(found) and is_list(expected):
        inner = [(found.value_type, expected.value_type)]
    elif types.is_map(found) and types.is_map(expected):
        inner = [(found.key_type, expected.key_type), (found.item_type, expected.item_type)]
    else:
        inner = []
    return next((name for one, other in inner if (name := surplus_field(one, other)) is not None), None)


def repeated_key(values: pa.Array) -> int | None:
    """Return the position of the first value with a map that has a key twice, or a null as a key; or None.

    Arrow has such maps. For DuckDB they are an error, and for Spark the last value of a key is the one.
    """
    if types.is_struct(values.type):
        found = [index for field in values.flatten() if (index := repeated_key(field)) is not None]
        return min(found, default=None)
    if not (types.is_list(values.type) or types.is_map(values.type)):
        return None
    parents, inner = _items(values)
    wrong = [parents[index].as_py() for side in _sides(inner) if (index := repeated_key(side)) is not None]
    if types.is_map(values.type):
        keys = inner.field(0)
        codes = keys.dictionary_encode().indices
        pairs = pc.add(pc.multiply(parents.cast(pa.int64()), len(keys)), codes.cast(pa.int64()))
        if keys.null_count or len(pairs.unique()) < len(pairs):
            seen: set[int | None] = {None}
            for parent, pair in zip(parents.to_pylist(), pairs.to_pylist(), strict=True):
                if pair in seen:
                    wrong.append(parent)
                    break
                seen.add(pair)
    return min(wrong, default=None)


def plain(arrow: pa.DataType) -> pa.DataType:
    """Return the type of the values behind an encoding: of a dictionary, of runs, of an extension type."""
    while True:
        if types.is_dictionary(arrow) or types.is_run_end_encoded(arrow):
            arrow = arrow.value_type
        elif isinstance(arrow, pa.BaseExtensionType):
            arrow = arrow.storage_type
        else:
            return arrow


def _pair(found: pa.DataType) -> tuple[pa.DataType, pa.DataType] | None:
    """Return the types of keys and values of a map or of a list of pairs; None for other types."""
    if types.is_map(found):
        return found.key_type, found.item_type
    if is_list(found) and types.is_struct(found.value_type) and found.value_type.num_fields == _OF_A_PAIR:
        return found.value_type.field(0).type, found.value_type.field(1).type
    return None


def _items(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the position of the list or map that each item is in, and all items, one after another.

    Items behind nulls are left out.
    """
    if types.is_map(values.type):  # Arrow's functions for lists end the process for maps
        fields = [values.type.key_field.with_name("key"), values.type.item_field.with_name("value")]
        values = values.cast(pa.list_(pa.struct(fields)))
    return pc.list_parent_indices(values), pc.list_flatten(values)


def _sides(items: pa.Array) -> list[pa.Array]:
    return items.flatten() if types.is_struct(items.type) else [items]


def _nested(values: pa.Array, expected: pa.DataType) -> pa.Array:
    """Cast arrays, structs and maps value by value; errors as :func:`cast`, for the outermost value."""
    nulls = values.is_null()
    if types.is_struct(expected):
        given = dict(zip([field.name for field in values.type], values.flatten(), strict=True))
        arrays = [
            cast(given[field.name], field.type) if field.name in given else pa.nulls(len(values), field.type)
            for field in expected
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(expected), mask=nulls)
    offsets = _offsets(values, pa.int32())
    parents, items = _items(values)
    try:
        if types.is_map(expected):
            keys, found = (
                cast(side, kind)
                for side, kind in zip(items.flatten(), (expected.key_type, expected.item_type), strict=True)
            )
            return pa.MapArray.from_arrays(offsets, keys, found, type=expected, mask=nulls)
        return pa.ListArray.from_arrays(offsets, cast(items, expected.value_type), type=expected, mask=nulls)
    except LossyCastError as error:
        raise LossyCastError(parents[error.index].as_py(), error.text) from None


def without_dictionaries(values: pa.Array) -> pa.Array:
    """Return the same values, of the type that :func:`decoded_type` returns."""
    if types.is_dictionary(values.type):
        return without_dictionaries(_of_dictionary(values))
    decoded = decoded_type(values.type)
    if decoded == values.type:
        return values
    nulls = values.is_null()
    if types.is_struct(decoded):
        arrays = [without_dictionaries(field) for field in values.flatten()]
        return pa.StructArray.from_arrays(arrays, fields=list(decoded), mask=nulls)
    _, items = _items(values)
    if types.is_map(decoded):
        keys, found = map(without_dictionaries, items.flatten())
        offsets = _offsets(values, pa.int32())
        return pa.MapArray.from_arrays(offsets, keys, found, type=decoded, mask=nulls)
    offsets = _offsets(values, pa.int64())
    return pa.LargeListArray.from_arrays(offsets, without_dictionaries(items), type=decoded, mask=nulls)


def _of_dictionary(values: pa.DictionaryArray) -> pa.Array:
    """Return the values of a dictionary in their places; Arrow cannot do it for views, as polars has them."""
    kind = values.type.value_type
    if kind not in _VIEWED:
        return values.dictionary_decode()
    return values.dictionary.cast(_VIEWED[kind]).take(values.indices)


def _offsets(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return where the items of each list or map begin among :func:`_items`, and where the last ones end."""
    lengths = pc.fill_null(_lengths(values), 0).cast(kind)
    return pa.concat_arrays([pa.array([0], kind), pc.cumulative_sum(lengths)])


def _lengths(values: pa.Array) -> pa.Array:
    if types.is_map(values.type):
        offsets = values.offsets
        return pc.if_else(values.is_valid(), pc.subtract(offsets[1:], offsets[:-1]), 0)
    return pc.list_value_length(values)


def _decoded(values: pa.Array) -> pa.Array:
    while not values.type.equals(plain(values.type)):
        if types.is_dictionary(values.type):
            values = _of_dictionary(values)
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
    (types.is_time, types.is_time),
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
