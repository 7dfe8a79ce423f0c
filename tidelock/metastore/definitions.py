"""Definitions of tables as Spark sends them to a Hive metastore, and as Tidelock has them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tidelock.column_names import split_list
from tidelock.column_types import to_arrow
from tidelock.errors import BadRequestError
from tidelock.metastore.spark_types import type_of
from tidelock.type_text import parse
from tidelock.wire.rows import Fields

_PROVIDER: Final = "spark.sql.sources.provider"
_SCHEMA: Final = "spark.sql.sources.schema"
#: Beginnings of the properties that Spark and Hive's client set by themselves.
_NOT_OF_USERS: Final = ("spark.sql.", "transient_lastDdlTime", "EXTERNAL", "TRANSLATED_", "last_modified_")
#: Statistics, which Hive's client sends as properties.
_STATISTICS: Final = frozenset({"numFiles", "numRows", "rawDataSize", "totalSize", "COLUMN_STATS_ACCURATE"})
#: Metadata of a column in Spark's JSON, by what Tidelock calls it.
_METADATA: Final = {"default": "CURRENT_DEFAULT", "comment": "comment"}
_INSTEAD: Final = "create it with tidelock.connect().create_table"


@dataclass(frozen=True, slots=True)
class Created:
    """A table that a statement is to create.

    Attributes:
        columns: Its columns.
        partition_by: The partition columns.
        properties: Its properties.
    """

    columns: pa.Schema
    partition_by: list[str]
    properties: dict[str, str]


def created(table: Any, folder: str) -> Created:
    """Return what CREATE TABLE asks for.

    Args:
        table: The table of Hive.
        folder: The location that Spark gives to a table without a location of its own.

    Raises:
        BadRequestError: It cannot be created so; the message has the way that works.
    """
    given = dict(table.parameters or {})
    provider = given.get(
        _PROVIDER, "parquet" if "parquet" in (table.sd.inputFormat or "").lower() else "hive"
    )
    if provider.lower() != "parquet":
        raise BadRequestError(
            f"table {table.tableName} is to be stored as {provider}; tables of Tidelock are Parquet: write "
            "USING parquet"
        )
    if table.viewOriginalText:
        raise BadRequestError(f"{table.tableName} is a view, which Spark keeps itself: CREATE TEMPORARY VIEW")
    location = (table.sd.location or folder).replace("file:///", "file:/")
    if table.tableType == "EXTERNAL_TABLE" or location != folder:
        raise BadRequestError(
            f"table {table.tableName} is to have files at {table.sd.location}; leave LOCATION out, and take "
            "the files by tidelock.connect().import_files"
        )
    if table.sd.numBuckets and table.sd.numBuckets > 0:
        raise BadRequestError(
            f"table {table.tableName} has buckets, which Tidelock does not have; leave them out"
        )
    columns, keys = columns_of(table)
    properties = {
        name: value
        for name, value in given.items()
        if not name.startswith(_NOT_OF_USERS) and name not in _STATISTICS
    }
    # Spark forgets NOT NULL before it calls, and the columns of a key have to be required.
    required = split_list(properties.get("unique_key", ""))
    columns = [{**one, "nullable": one["nullable"] and one["name"] not in required} for one in columns]
    return Created(pa.schema([_field(one) for one in columns]), keys, properties)


def columns_of(table: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the columns of a table as fields of Spark's JSON, and the names of its partition columns."""
    given = dict(table.parameters or {})
    text = given.get(_SCHEMA)
    if text is None and (parts := given.get(f"{_SCHEMA}.numParts")) is not None:
        text = "".join(given[f"{_SCHEMA}.part.{place}"] for place in range(int(parts)))
    if text is not None:
        keys = int(given.get(f"{_SCHEMA}.numPartCols", "0"))
        names = [given[f"{_SCHEMA}.partCol.{place}"] for place in range(keys)]
        fields: list[dict[str, Any]] = json.loads(text)["fields"]
        return fields, names
    keys_of_hive = table.partitionKeys or []
    of_hive = [*table.sd.cols, *keys_of_hive]
    return (
        [
            {"name": one.name, "type": one.type, "nullable": True, "metadata": {"comment": one.comment}}
            for one in of_hive
        ],
        [one.name for one in keys_of_hive],
    )


def _field(column: Mapping[str, Any]) -> pa.Field:
    name, given = column["name"], column.get("metadata") or {}
    if "__CHAR_VARCHAR_TYPE_STRING" in given:
        raise BadRequestError(
            f"column {name} is {given['__CHAR_VARCHAR_TYPE_STRING']}, whose length nothing would check: make "
            f"it string, or {_INSTEAD} with a check",
            column=name,
        )
    if "GENERATION_EXPRESSION" in given:
        raise BadRequestError(f"column {name} is generated: {_INSTEAD}", column=name)
    metadata = {ours: given[theirs] for ours, theirs in _METADATA.items() if given.get(theirs)}
    try:
        kind = str(parse(type_of(column["type"])))
    except ValueError as error:
        raise BadRequestError(
            f"column {name} has type {column['type']!r}, which Tidelock does not have ({error})", column=name
        ) from None
    return pa.field(name, to_arrow(kind), column["nullable"], metadata or None)


def added(definition: Fields, table: Any) -> pa.Schema:
    """Return the columns that ALTER TABLE adds; none for one that changes statistics alone.

    Args:
        definition: The table as it is.
        table: The table of Hive as it is to be.

    Raises:
        BadRequestError: It changes something else.
    """
    columns, _ = columns_of(table)
    known = {one["name"]: one for one in definition["columns"]}
    found = {one["name"]: one for one in columns}
    missing = [name for name in known if name not in found]
    if missing:
        raise BadRequestError(f"columns {', '.join(missing)} are missing: {_other_changes(definition)}")
    for name, one in known.items():
        if str(parse(type_of(found[name]["type"]))) != one["type"]:
            raise BadRequestError(
                f"column {name} changes its type: {_other_changes(definition)}", column=name
            )
    return pa.schema([_field(one) for one in columns if one["name"] not in known])


def _other_changes(definition: Fields) -> str:
    return (
        f"ALTER TABLE {definition['name']} adds columns and renames the table; for other changes use "
        "tidelock.connect().alter_table"
    )
