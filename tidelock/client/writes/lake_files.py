"""The files of tables of Delta Lake and Iceberg, as their own libraries tell them.

A program opens the table with `deltalake` or `pyiceberg`, at a version of its choice, and gives it to
`import_files`. Neither library is needed for anything else, so neither is imported here. The files hold
exactly the rows of the table, or the table is refused: rows that are only marked as deleted would come back,
and columns under other names would get lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from tidelock.client.writes.file_import import ImportFile
from tidelock.errors import BadRequestError
from tidelock.partition_paths import path_of

#: The metadata of a field of Arrow with its id in Iceberg.
_FIELD_ID: Final = b"PARQUET:field_id"

#: A table of Delta Lake or Iceberg, opened by its own library.
Lake = Any


def lake_files(source: object, partition_by: Sequence[str]) -> list[ImportFile] | None:
    """Return the files of a table of Delta Lake or Iceberg with their partitions; None for any other object.

    Args:
        source: `deltalake.DeltaTable`, `pyiceberg.table.Table`, or a scan of the latter, at a snapshot.
        partition_by: The partition columns of the table that gets the files.

    Raises:
        BadRequestError: The files do not hold exactly the rows of the table, lie elsewhere than on a disk of
            this machine, or are partitioned in another way.
        SchemaMismatchError: A value of a partition has no folder.
    """
    library = type(source).__module__.partition(".")[0]
    if library == "deltalake" and hasattr(source, "get_add_actions"):
        return [*_of_delta(source, partition_by)]
    if library == "pyiceberg" and (hasattr(source, "scan") or hasattr(source, "plan_files")):
        return [*_of_iceberg(source, partition_by)]
    return None


def _of_delta(table: Any, partition_by: Sequence[str]) -> Iterator[ImportFile]:
    name, described = table.table_uri, table.metadata()
    if described.configuration.get("delta.columnMapping.mode", "none") != "none":
        raise _refused(name, "its files have other names of columns than the table (column mapping)")
    if any(batch.num_rows for batch in table.deletion_vectors()):
        raise _refused(
            name, "some of its rows are only marked as deleted (deletion vectors); rewrite its files"
        )
    if set(described.partition_columns) != set(partition_by):
        raise _refused(
            name,
            f"it is partitioned by {described.partition_columns or 'nothing'}, and the table that gets its "
            f"files by {list(partition_by) or 'nothing'}",
        )
    actions = pa.table(table.get_add_actions(flatten=False))
    told = actions.select([name for name in ("path", "partition") if name in actions.column_names])
    for file in told.to_pylist():
        values = file.get("partition") or {}
        path = _local(name) / unquote(_path_of(file["path"]))
        yield ImportFile(path, path_of({column: values[column] for column in partition_by}))


def _of_iceberg(source: Any, partition_by: Sequence[str]) -> Iterator[ImportFile]:
    scan = source.scan() if hasattr(source, "scan") else source
    name = ".".join(getattr(scan, "table_identifier", None) or ()) or scan.table_metadata.location
    if partition_by:
        raise _refused(
            name,
            f"its files hold all columns, and those of a table that is partitioned by {list(partition_by)} "
            "lack these; import into a table without partitions",
        )
    if scan.limit is not None or tuple(scan.selected_fields) != ("*",):
        raise _refused(name, "the scan selects some of its columns or rows")
    ids = _ids(scan.projection().as_arrow())
    try:
        tasks = list(scan.plan_files())
    except ValueError as error:  # it cannot read such a table itself
        raise _refused(name, str(error)) from error
    for task in tasks:
        if task.delete_files:
            raise _refused(name, "some of its rows are deleted by files of their own; rewrite its data files")
        if type(task.residual).__name__ != "AlwaysTrue":
            raise _refused(name, "the filter of the scan selects some of the rows of a file")
        if task.file.file_format.name != "PARQUET":
            raise _refused(name, f"it has files of another format ({task.file.file_format.name})")
        path = Path(_path_of(task.file.file_path))
        if _ids(pq.read_schema(path)) != ids:
            raise _refused(name, f"{path} is older than a change of its columns; rewrite its data files")
        yield ImportFile(path, "")


def _ids(columns: Iterable[pa.Field], above: str = "") -> dict[str, bytes | None]:
    """Return the ids of columns, those inside of others too, by their names; None where one has none.

    Iceberg knows a column by its id: a column of the same name may be another one, whose values are others.
    """
    found: dict[str, bytes | None] = {}
    for field in columns:
        name = f"{above}{field.name}"
        found[name] = (field.metadata or {}).get(_FIELD_ID)
        kind = field.type
        if types.is_map(kind):
            found |= _ids([kind.key_field, kind.item_field], f"{name}.")
        elif types.is_list(kind) or types.is_large_list(kind):
            found |= _ids([kind.value_field], f"{name}.")
        elif types.is_struct(kind):
            found |= _ids(kind, f"{name}.")
    return found


def _local(uri: str) -> Path:
    """Return the folder of a Delta table, whose URI has escapes."""
    return Path(unquote(_path_of(uri)))


def _path_of(uri: str) -> str:
    """Return the path of a file on a disk of this machine, as its URI has it."""
    parts = urlsplit(uri)
    if parts.scheme not in {"", "file"} or parts.netloc not in {"", "localhost"}:
        raise BadRequestError(
            f"{uri} is not on a disk of this machine; fetch the files first, or insert the rows", path=uri
        )
    return uri.removeprefix("file://localhost").removeprefix("file://").removeprefix("file:")


def _refused(name: str, why: str) -> BadRequestError:
    return BadRequestError(f"the files of {name} cannot become parts as they are: {why}; or insert its rows")
