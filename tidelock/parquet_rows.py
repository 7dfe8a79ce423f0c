"""The width of a Parquet file's rows in memory, by which a reader bounds how many it decodes at a time."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow.parquet as pq

from tidelock.parquet_leaves import is_of


def row_bytes(metadata: pq.FileMetaData, names: Collection[str]) -> int:
    """Return about how many bytes of memory a row takes, in the row group with the widest rows; at least 1.

    Args:
        metadata: Metadata of the file.
        names: Names of the decoded columns.
    """
    widest = 1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = (group.column(index) for index in range(group.num_columns))
        decoded = sum(_decoded_bytes(chunk) for chunk in chunks if is_of(chunk.path_in_schema, names))
        widest = max(widest, decoded // max(group.num_rows, 1))
    return widest


def _decoded_bytes(chunk: pq.ColumnChunkMetaData) -> int:
    """Return about how many bytes a column of a row group has in memory; encoded it may be much smaller."""
    return max(int(chunk.total_uncompressed_size), 8 * int(chunk.num_values))
