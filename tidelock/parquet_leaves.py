"""The columns that a Parquet file has for nested columns of a table: one for each leaf. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa
from pyarrow import types

from tidelock.column_types import is_list


def leaf_paths(fields: Iterable[pa.Field]) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the path and the type of each column that a file has for some fields, in its order.

    A path is text with dots, as in the metadata of files. A field with a dot in its name may have the path of
    another one.
    """
    for field in fields:
        for path, leaf in _below(field.type):
            yield ".".join((field.name, *path)), leaf


def _below(arrow: pa.DataType) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    sides: list[tuple[tuple[str, ...], pa.DataType]]
    if types.is_map(arrow):
        sides = [(("key_value", "key"), arrow.key_type), (("key_value", "value"), arrow.item_type)]
    elif is_list(arrow):
        sides = [(("list", "element"), arrow.value_type)]
    elif types.is_struct(arrow):
        sides = [((field.name,), field.type) for field in arrow]
    else:
        yield (), arrow
        return
    for head, inner in sides:
        for path, leaf in _below(inner):
            yield (*head, *path), leaf


def first_leaves(fields: Iterable[pa.Field]) -> dict[str, int]:
    """Return the number of the first column that a file has for each field."""
    found, number = {}, 0
    for field in fields:
        found[field.name] = number
        number += sum(1 for _ in _below(field.type))
    return found


def is_of(path: str, names: Collection[str]) -> bool:
    """Return whether a column of a file may be one of some columns of a table, by its path."""
    while path not in names:
        path, dot, _ = path.rpartition(".")
        if not dot:
            return False
    return True


def has_floats(arrow: pa.DataType) -> bool:
    """Return whether values of a type have floating-point numbers, at any depth."""
    return any(types.is_floating(leaf) for _, leaf in _below(arrow))
