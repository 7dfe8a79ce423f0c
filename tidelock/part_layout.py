"""The layout of rows in the Parquet files of tables, for all writers: agents and Spark tasks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

#: Decimals of up to 18 digits are stored as integers: Spark's vectorised reader ran TPC-H Q1 in 1.9 s, with
#: fixed-length byte arrays in 2.4 s (Q6 0.22 and 0.40 s; SF 1, one file, 2 cores). The footer has no Arrow
#: schema, since the table's definition has it.
_LAYOUT: Final[Mapping[str, Any]] = {
    "store_schema": False,
    "store_decimal_as_integer": True,
    "write_page_checksum": True,
    "write_statistics": True,
}
#: Spark reads zstd as fast as snappy (same run) at 0.76 of the size. But zstd costs 0.35 ms more for 100 rows
#: of 16 columns, which is more than the rest of writing them.
_SMALL_CODEC: Final = "snappy"
_LARGE_CODEC: Final = "zstd"
#: Files with fewer rows have no page index. They have at most about ten pages per column. A page index costs
#: Spark requests (3 of 12 for a small part with three filtered columns), and skipping a page saves less than
#: one request.
PAGE_INDEX_ROWS: Final = 200_000


def parquet_options(rows: int, small: bool) -> Mapping[str, Any]:
    """Return the settings for a file, as arguments of `pyarrow.parquet.ParquetWriter`.

    Args:
        rows: Number of rows of the first row group.
        small: These rows take so little memory that a better codec would cost a noticeable part of the time.
    """
    return {
        **_LAYOUT,
        "compression": _SMALL_CODEC if small else _LARGE_CODEC,
        "write_page_index": rows >= PAGE_INDEX_ROWS,
    }


def sorted_by(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows sorted; rows that are sorted already, as in most loads, are not copied."""
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names])
    if pc.all(pc.less(order[:-1], order[1:])).as_py():  # true for one row, too: `all` of no values is true
        return rows
    return rows.combine_chunks().take(order)
