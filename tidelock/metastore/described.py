"""Tables, views and partitions of a snapshot as a Hive metastore describes them to Spark.

A table at a CSN is a *data source table* of Spark: Spark reads it with its own Parquet reader, whatever the
settings of the session, and with the options that are part of it, which name the replicas
(:mod:`tidelock.read_route`). Spark keeps what it has read of such a table for as long as the session lasts,
by its name; so only a name that has a CSN is one. All other names are views, made at each look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tidelock.metastore import spark_types
from tidelock.metastore.idl import hive
from tidelock.metastore.names import suffix_of
from tidelock.metastore.snapshots import Partition
from tidelock.partition_paths import NULL_TEXT, texts_of
from tidelock.type_text import quoted
from tidelock.wire.rows import Fields

TABLE: Final = "EXTERNAL_TABLE"
VIEW: Final = "VIRTUAL_VIEW"
_PARQUET: Final = "org.apache.hadoop.hive.ql.io.parquet"
#: The columns that Spark itself gives to Hive where only Spark shall read a table. Hive's client refuses
#: types that Hive lacks when it sends a table back; Spark takes those of the table's properties.
_PLACEHOLDER: Final = [hive.FieldSchema("col", "array<string>", "from deserializer")]


def database(name: str, location: str, properties: Mapping[str, str], about: str) -> Any:
    """Return a database."""
    return hive.Database(name, about, location, dict(properties), "", 1)


def table(
    database_name: str,
    name: str,
    definition: Fields,
    location: str,
    options: Mapping[str, str],
    *,
    by_catalog: bool = False,
) -> Any:
    """Return a table at a CSN, or one of a transaction, to which rows are written.

    Args:
        database_name: Its database.
        name: Its name there.
        definition: Columns, partition columns, rows and bytes.
        location: Its folder.
        options: Options of Spark's reader and writer.
        by_catalog: Spark asks for the partitions that a query needs, and lists their folders. It does so
            without the options of the table, and above 32 folders on the executors: so all processes have to
            know the name service from their settings. Otherwise Spark lists all folders, with the options.
    """
    keys = list(definition["partition_by"])
    columns = _keys_last(definition)
    properties = {
        "EXTERNAL": "TRUE",
        "spark.sql.sources.provider": "parquet",
        # Spark sends them back behind an INSERT, and only if there were some.
        "spark.sql.statistics.totalSize": str(definition["bytes"]),
        "spark.sql.statistics.numRows": str(definition["rows"]),
        **spark_types.properties(columns, keys),
    }
    if keys and by_catalog:
        properties["spark.sql.partitionProvider"] = "catalog"
    storage = {**options, "path": location, "serialization.format": "1"}
    types = {one["name"]: one["type"] for one in columns}
    return hive.Table(
        sd=_storage(location, storage),
        partitionKeys=[hive.FieldSchema(key, types[key], None) for key in keys],
        parameters=properties,
        tableType=TABLE,
        **_named(database_name, name),
    )


def view_of(database_name: str, name: str, definition: Fields, namespace: str, csn: int) -> Any:
    """Return the view of a table at a CSN, its columns in the order of the definition."""
    columns = list(definition["columns"])
    names = ", ".join(quoted(one["name"]) for one in columns)
    text = f"SELECT {names} FROM {quoted(namespace + suffix_of(csn))}.{quoted(name)}"  # noqa: S608 - quoted
    return view(database_name, name, columns, text)


def view(database_name: str, name: str, columns: Sequence[Fields], text: str) -> Any:
    """Return a view of Spark, whose text names databases in full."""
    properties = {
        "view.catalogAndNamespace.numParts": "2",
        "view.catalogAndNamespace.part.0": "spark_catalog",
        "view.catalogAndNamespace.part.1": "default",
        "view.query.out.numCols": str(len(columns)),
        **{f"view.query.out.col.{place}": one["name"] for place, one in enumerate(columns)},
        # Inside of a view the settings of the session do not count, and times of day need one.
        "view.sqlConfig.spark.sql.timeType.enabled": "true",
        **spark_types.properties(columns, ()),
    }
    return hive.Table(
        sd=_storage(None, {}),
        partitionKeys=[],
        parameters=properties,
        viewOriginalText=text,
        viewExpandedText=text,
        tableType=VIEW,
        **_named(database_name, name),
    )


def partitions(database_name: str, name: str, location: str, found: Iterable[Partition]) -> list[Any]:
    """Return partitions of a table; without its options, which would be most of the answer."""
    return [
        hive.Partition(
            values=values_of(one),
            dbName=database_name,
            tableName=name,
            createTime=0,
            lastAccessTime=0,
            sd=_storage(f"{location}/{one.path}", {"serialization.format": "1"}),
            parameters={"numRows": str(one.rows), "totalSize": str(one.bytes)},
        )
        for one in found
    ]


def values_of(partition: Partition) -> list[str]:
    """Return the texts of a partition's values, in the order of the partition columns."""
    return [NULL_TEXT if text is None else text for text in texts_of(partition.path).values()]


def _keys_last(definition: Fields) -> list[Fields]:
    """Return the columns as Spark wants them in a table with partitions."""
    by_name = {one["name"]: one for one in definition["columns"]}
    keys = definition["partition_by"]
    return [
        *(one for one in definition["columns"] if one["name"] not in keys),
        *(by_name[key] for key in keys),
    ]


def _named(database_name: str, name: str) -> dict[str, Any]:
    known = {"tableName": name, "dbName": database_name, "owner": "", "temporary": False}
    return known | {"createTime": 0, "lastAccessTime": 0, "retention": 0}


def _storage(location: str | None, options: Mapping[str, str]) -> Any:
    return hive.StorageDescriptor(
        cols=_PLACEHOLDER,
        location=location,
        inputFormat=f"{_PARQUET}.MapredParquetInputFormat",
        outputFormat=f"{_PARQUET}.MapredParquetOutputFormat",
        compressed=False,
        numBuckets=-1,
        serdeInfo=hive.SerDeInfo("", f"{_PARQUET}.serde.ParquetHiveSerDe", dict(options)),
        bucketCols=[],
        sortCols=[],
        parameters={},
        storedAsSubDirectories=False,
    )
