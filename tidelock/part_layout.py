"""The layout of rows in the Parquet files of tables, for all writers: agents and Spark tasks. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.float_mark import FLOATS_MARK
from tidelock.parquet_leaves import leaf_paths

#: Decimals of up to 18 digits are stored as integers: Spark's vectorised reader ran TPC-H Q1 in 1.9 s, with
#: fixed-length byte arrays in 2.4 s (Q6 0.22 and 0.40 s; SF 1, one file, 2 cores). The footer has no Arrow
#: schema, since the table's definition has it.
_LAYOUT: Final[Mapping[str, Any]] = {
    "store_schema": False,
    "store_decimal_as_integer": True,
    "write_page_checksum": True,
}
#: Spark reads zstd as fast as snappy (same run) at 0.76 of the size. But zstd costs 0.35 ms more for 100 rows
#: of 16 columns, which is more than the rest of writing them.
_SMALL_CODEC: Final = "snappy"
_LARGE_CODEC: Final = "zstd"
#: Files with fewer rows have no page index. They have at most about ten pages per column. A page index costs
#: Spark requests (3 of 12 for a small part with three filtered columns), and skipping a page saves less than
#: one request.
PAGE_INDEX_ROWS: Final = 200_000
#: The meaning of a form: another number makes all forms others.
_FORMS: Final = 1


@dataclass(frozen=True, slots=True)
class FloatColumns:
    """The float and double columns of a file whose values are compared differently by writers and readers.

    Floats inside of arrays, structs and maps are not looked at: they never have a range or a dictionary.

    Attributes:
        nan: Columns with a NaN. They have no range (min, max) in the footer: Arrow leaves NaN out of it, but
            for Spark and DuckDB NaN is larger than any other number. They would skip its row group.
        zero: Columns with a zero. They have no dictionary: Spark takes 0.0 and -0.0 for different entries of
            a dictionary, but for equal numbers. It would skip a row group that has only the other zero.
    """

    nan: frozenset[str] = frozenset()
    zero: frozenset[str] = frozenset()

    @classmethod
    def of(cls, rows: pa.RecordBatch | pa.Table) -> FloatColumns:
        """Return the columns of some rows."""
        columns = [field.name for field in rows.schema if pa.types.is_floating(field.type)]
        return cls(
            nan=frozenset(name for name in columns if pc.any(pc.is_nan(rows[name])).as_py()),
            zero=frozenset(name for name in columns if pc.any(pc.equal(rows[name], 0)).as_py()),
        )

    def __or__(self, other: FloatColumns) -> FloatColumns:
        """Return the columns of both."""
        return FloatColumns(self.nan | other.nan, self.zero | other.zero)


NO_FLOATS: Final = FloatColumns()


def parquet_options(rows: int, small: bool, schema: pa.Schema, floats: FloatColumns) -> Mapping[str, Any]:
    """Return the settings for a file, as arguments of `pyarrow.parquet.ParquetWriter`.

    Args:
        rows: Number of rows of the first row group.
        small: These rows take so little memory that a better codec would cost a noticeable part of the time.
        schema: Schema of the file.
        floats: Those of all rows that the file will have.
    """
    ranged, encoded = schema.names, schema.names
    if any(pa.types.is_nested(field.type) for field in schema):
        paths = list(leaf_paths(schema))
        # Fields with a dot in their names may share a path: one without hints takes them from the other.
        inside = {path for path, leaf in paths if pa.types.is_floating(leaf) and path not in schema.names}
        inside |= {path for path, count in Counter(path for path, _ in paths).items() if count > 1}
        ranged = encoded = [path for path, _ in paths if path not in inside]
    return {
        **_LAYOUT,
        "write_statistics": [name for name in ranged if name not in floats.nan],
        "use_dictionary": [name for name in encoded if name not in floats.zero],
        "compression": _SMALL_CODEC if small else _LARGE_CODEC,
        "write_page_index": rows >= PAGE_INDEX_ROWS,
    }


def form_of(schema: pa.Schema) -> str:
    """Return the form of files of one row group, without a page index: 16 hexadecimal digits.

    Two files of the same form that this module has written have the same footer but for their row groups: its
    other fields depend on the schema, on the layout, on the mark, and on the version of Arrow, which writes
    its name into it.
    """
    layout = repr((_FORMS, pa.__version__, sorted(_LAYOUT.items()), FLOATS_MARK)).encode()
    return hashlib.blake2b(layout + schema.serialize().to_pybytes(), digest_size=8).hexdigest()


def mark(writer: Any) -> None:
    """Mark a file, before its `ParquetWriter` is closed: it was written by the rule of `FloatColumns`."""
    writer.add_key_value_metadata({FLOATS_MARK: b"1"})


def sorted_by(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows sorted; rows that are sorted already, as in most loads, are not copied."""
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names])
    if pc.all(pc.less(order[:-1], order[1:])).as_py():  # true for one row, too: `all` of no values is true
        return rows
    return rows.combine_chunks().take(order)
