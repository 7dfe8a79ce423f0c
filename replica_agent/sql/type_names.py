"""The names that DuckDB has for the types of columns.

The process of the protocol needs them too, and loads no DuckDB.
"""

from __future__ import annotations

from tidelock.replica_agent.sql.request import quote
from tidelock.table_columns import Column
from tidelock.type_text import Array, Map, Plain, Struct, TypeTree, parse

_TYPES = {
    "boolean": "BOOLEAN",
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP",
}


def type_of(column: Column) -> str:
    """Return DuckDB's name of a column's type."""
    return _type(parse(column.type))


def _type(tree: TypeTree) -> str:
    match tree:
        case Plain(name):
            return _TYPES.get(name) or name.upper()
        case Array(element):
            return f"{_type(element)}[]"
        case Struct(fields):
            return f"STRUCT({', '.join(f'{quote(name)} {_type(kind)}' for name, kind in fields)})"
        case Map(key, value):
            return f"MAP({_type(key)}, {_type(value)})"
