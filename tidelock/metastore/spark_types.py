"""The schema of a table as Spark keeps it in a metastore: JSON in the properties of the table. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidelock.type_text import Array, Map, Plain, Struct, TypeTree, parse, quoted
from tidelock.wire.rows import Fields

#: Names of Spark's JSON that are not those of its SQL.
_NAMES: Final[Mapping[str, str]] = {
    "tinyint": "byte",
    "smallint": "short",
    "int": "integer",
    "bigint": "long",
    "time": "time(6)",
}
_TEXTS: Final[Mapping[str, str]] = {theirs: ours for ours, theirs in _NAMES.items()}
#: The version that a table says it was made by. Any from 2.1 on has Spark take the schema below.
_MADE_BY: Final = "3.5.0"


def properties(columns: Sequence[Fields], keys: Sequence[str]) -> dict[str, str]:
    """Return the properties that give Spark the columns of a table.

    Args:
        columns: Columns with ``name``, ``type`` and ``nullable``, those of ``keys`` last.
        keys: The partition columns, in their order.
    """
    fields = [_field(one["name"], json_of(parse(one["type"])), nullable=one["nullable"]) for one in columns]
    found = {
        "spark.sql.create.version": _MADE_BY,
        "spark.sql.sources.schema": json.dumps({"type": "struct", "fields": fields}),
    }
    if keys:
        found["spark.sql.sources.schema.numPartCols"] = str(len(keys))
        found |= {f"spark.sql.sources.schema.partCol.{place}": key for place, key in enumerate(keys)}
    return found


def json_of(kind: TypeTree) -> Any:
    """Return a type as Spark's JSON has it; what is inside of another type may be null."""
    match kind:
        case Array(element):
            return {"type": "array", "elementType": json_of(element), "containsNull": True}
        case Map(key, value):
            return {
                "type": "map",
                "keyType": json_of(key),
                "valueType": json_of(value),
                "valueContainsNull": True,
            }
        case Struct(fields):
            inside = [_field(name, json_of(inner), nullable=True) for name, inner in fields]
            return {"type": "struct", "fields": inside}
        case Plain(name):
            return _NAMES.get(name, name)


def type_of(found: Any) -> str:
    """Return the text of a type for a type of Spark's JSON, or of Hive, whose texts are the same.

    Raises:
        ValueError: It is a type that has no text, as one that a user has defined.
    """
    if isinstance(found, str):
        return _TEXTS.get(found, found)
    match found:
        case {"type": "array", "elementType": element}:
            return f"array<{type_of(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{type_of(key)},{type_of(value)}>"
        case {"type": "struct", "fields": fields}:
            inside = ",".join(f"{quoted(one['name'])}:{type_of(one['type'])}" for one in fields)
            return f"struct<{inside}>"
    raise ValueError(f"{found!r} has no text")


def _field(name: str, kind: Any, *, nullable: bool) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}
