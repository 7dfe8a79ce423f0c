"""Defaults of columns: which ones a column can have, and the bytes of one in a file. Pure.

A default is one constant: SQL that is run again for each row would give other rows on other replicas.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidelock import casts
from tidelock.column_defaults import scalar_of
from tidelock.column_types import is_nested, to_arrow
from tidelock.errors import BadRequestError
from tidelock.wire.statements import Literal, Value

#: Most bytes of the text of a default, unless an agent is told otherwise (`column_default_bytes_max`).
DEFAULT_BYTES_MAX: Final = 256

#: Text, perhaps of a date or a time; bytes; a word; a number.
_SQL: Final = re.compile(
    r"(?:(date|time|timestamp|timestamp_ntz)\s*)?'((?:[^']|'')*)'|x'((?:[0-9a-f]{2})*)'"
    r"|(null)|(true|false|[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)",
    re.IGNORECASE,
)
#: The types whose values are written in quotes.
_QUOTED: Final = frozenset({"string", "date", "time", "timestamp", "timestamp_ntz", "float", "double"})
#: Bytes of a value in Parquet, by its physical type. Texts and bytes have a length before them.
_PLAIN_BYTES: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
_LENGTH_BYTES: Final = 4


def default_text(column: str, kind: str, value: Value, bytes_max: int = DEFAULT_BYTES_MAX) -> str | None:
    """Return the text of a default; None for null, which is the same as no default.

    Args:
        column: The name of the column, for messages.
        kind: Its type.
        value: A constant of SQL (`7`, `-1.5`, `'new'`, `true`, `date '2026-01-01'`, `x'00ff'`, `null`), or
            another value than text.
        bytes_max: Most bytes of the text.

    Raises:
        BadRequestError: It is no constant, no value of that type, or too long; or the type is nested.
    """
    if is_nested(kind):
        if value in {"null", "NULL"} or (isinstance(value, Literal) and value.value is None):
            return None
        raise BadRequestError(
            f"column {column} is {kind}, which can have no default but null; leave it out", column=column
        )
    shown = value if isinstance(value, str) else repr(value.value)
    try:
        scalar = _of_sql(kind, value) if isinstance(value, str) else _of_literal(kind, value)
        text = None if scalar is None else _text_of(kind, scalar)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise BadRequestError(
            f"expected the default of column {column} as a constant of type {kind}, found {shown} ({error}); "
            "give e.g. 7, 'text', true, date '2026-01-01', time '12:30:00', "
            "timestamp '2026-01-01T00:00:00Z' or x'00ff'",
            column=column,
        ) from None
    if text is None:
        return None
    if (found := len(text.encode())) > bytes_max:
        raise BadRequestError(
            f"the default of column {column} has {found} bytes; the limit is {bytes_max} "
            "(column_default_bytes_max): shorten it",
            column=column,
            limit=bytes_max,
            found=found,
        )
    return text


def _text_of(kind: str, scalar: pa.Scalar) -> str:
    """Return the text of a value, which gives the value back; and which Parquet can hold.

    Raises:
        ValueError, OverflowError: It has none: a date outside of the years 1 to 9999.
    """
    value = scalar.as_py()
    if kind == "binary":
        text: str = value.hex()
    elif kind.startswith("decimal"):
        text = f"{value:f}"
    else:
        text = scalar.cast(pa.string()).as_py()
    again = scalar_of(kind, text).as_py()
    plain_bytes(kind, text)
    if repr(again) != repr(value):  # NaN is no NaN
        raise ValueError("it has no text that gives it back")
    return text


def plain_bytes(kind: str, text: str) -> bytes:
    """Return a default as Parquet stores one value by itself (PLAIN), in the types of the files of agents."""
    schema = pa.schema([pa.field("v", to_arrow(kind), nullable=False)])
    value = scalar_of(kind, text)
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"v": pa.array([value.as_py()], value.type)}, schema),
        sink,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        store_decimal_as_integer=True,
    )
    data = sink.getvalue()
    file = pq.ParquetFile(pa.BufferReader(data))
    chunk, column = file.metadata.row_group(0).column(0), file.schema.column(0)
    if chunk.physical_type == "BYTE_ARRAY":
        size = _LENGTH_BYTES + len(value.cast(pa.binary()).as_py())
    else:
        size = _PLAIN_BYTES.get(chunk.physical_type, column.length)
    # One row of a required column: the page is its header and the value.
    end = chunk.data_page_offset + chunk.total_compressed_size
    return bytes(data[end - size : end])


def _of_sql(kind: str, text: str) -> pa.Scalar | None:
    match = _SQL.fullmatch(text.strip())
    if match is None:
        raise ValueError("it is no constant")
    word, quoted, digits, null, bare = match.groups()
    if null:
        return None
    if (digits is not None) != (kind == "binary"):
        raise ValueError("bytes are written as x'00ff', and nothing else is")
    if digits is not None:
        return scalar_of(kind, digits)
    fits = (quoted is not None) == (kind in _QUOTED) or (bare and kind in {"float", "double"})
    if not fits or (bare and bare.isalpha() != (kind == "boolean")):
        raise ValueError("it is of another type")
    if word and word.lower() != kind:
        raise ValueError(f"it is of type {word.lower()}")
    if quoted is not None:
        return scalar_of(kind, quoted.replace("''", "'"))
    found = scalar_of(kind, bare.lstrip("+"))
    if kind in {"float", "double"} and math.isinf(found.as_py()):
        raise ValueError("it is too large")
    return found


def _of_literal(kind: str, literal: Literal) -> pa.Scalar | None:
    """Return a value that came as JSON: dates, times and decimals as text, bytes in base64."""
    value = literal.value
    if value is None:
        return None
    if literal.base64:
        if kind != "binary":
            raise ValueError("it is of bytes")
        try:
            return pa.scalar(base64.b64decode(str(value), validate=True), pa.binary())
        except binascii.Error as error:
            raise ValueError(str(error)) from None
    if isinstance(value, str):
        if kind in {"string", "binary", "boolean"}:
            raise ValueError("it is of another type")
        return scalar_of(kind, value)
    if isinstance(value, int) and not isinstance(value, bool) and kind not in _QUOTED - {"float", "double"}:
        if kind in {"binary", "boolean"}:
            raise ValueError("it is of another type")
        return scalar_of(kind, str(value))
    found, wanted = pa.array([value]), to_arrow(kind)
    if not casts.may_fit(wanted, found.type):
        raise ValueError("it is of another type")
    return casts.cast(found, wanted)[0]
