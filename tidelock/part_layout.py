"""How rows lie in the Parquet files of tables, whoever writes these: agents, and tasks of Spark. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

#: Decimals of up to 18 digits as integers: Spark's vectorised reader ran TPC-H Q1 in 1.9 s, with fixed-length
#: byte arrays in 2.4 s (Q6 0.22 and 0.40 s; SF 1, one file, 2 cores). No Arrow schema in the footer: the
#: table has it.
_LAYOUT: Final[Mapping[str, Any]] = {
    "store_schema": False,
    "store_decimal_as_integer": True,
    "write_page_checksum": True,
    "write_statistics": True,
}
#: zstd: as fast to read in Spark as snappy (same run) at 0.76 of the size, but it costs 0.35 ms more for 100
#: rows of 16 columns, which is more than all the rest of writing them.
_SMALL_CODEC: Final = "snappy"
_LARGE_CODEC: Final = "zstd"
#: Fewer rows are about ten pages of a column, or less. A page index costs Spark requests (3 of 12 for a small
#: part with three filtered columns), and to skip a page saves less than one. So small parts have none.
PAGE_INDEX_ROWS: Final = 200_000


def parquet_options(rows: int, small: bool) -> Mapping[str, Any]:
    """Return how to write a file, as arguments of `pyarrow.parquet.ParquetWriter`.

    Args:
        rows: Of its first row group.
        small: These take little memory, so that the time for a better codec would be felt.
    """
    return {
        **_LAYOUT,
        "compression": _SMALL_CODEC if small else _LARGE_CODEC,
        "write_page_index": rows >= PAGE_INDEX_ROWS,
    }


def sorted_by(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows sorted; those that are sorted already, as of most loads, are not copied."""
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names])
    if pc.all(pc.less(order[:-1], order[1:])).as_py():  # of one row too: all of nothing is true
        return rows
    return rows.combine_chunks().take(order)
