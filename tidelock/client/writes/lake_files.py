"""The files of tables of Delta Lake and Iceberg, as their own libraries tell them.

A program opens the table with `deltalake` or `pyiceberg`, at a version of its choice, and gives it to
`import_files`. Neither library is needed for anything else, so neither is imported here. The files hold
exactly the rows of the table, or the table is refused: rows that are only marked as deleted would come back,
and columns under other names would get lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from tidelock.client.writes.file_import import ImportFile
from tidelock.errors import BadRequestError
from tidelock.partition_paths import path_of

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
    for file in pa.table(table.get_add_actions(flatten=False)).to_pylist():
        values = file.get("partition") or {}
        place = unquote(file["path"])
        path = _local(place) if urlsplit(file["path"]).scheme else _local(name) / place
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
    for task in scan.plan_files():
        if task.delete_files:
            raise _refused(name, "some of its rows are deleted by files of their own; rewrite its data files")
        if type(task.residual).__name__ != "AlwaysTrue":
            raise _refused(name, "the filter of the scan selects some of the rows of a file")
        if task.file.file_format.name != "PARQUET":
            raise _refused(name, f"it has files of another format ({task.file.file_format.name})")
        yield ImportFile(_local(task.file.file_path), "")


def _local(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.scheme not in {"", "file"}:
        raise BadRequestError(
            f"{uri} is not on a disk of this machine; fetch the files first, or insert the rows", path=uri
        )
    return Path(unquote(parts.path) if parts.scheme else uri)


def _refused(name: str, why: str) -> BadRequestError:
    return BadRequestError(f"the files of {name} cannot become parts as they are: {why}; or insert its rows")
