"""Defaults of columns: from what users write to the text of a definition, and to the bytes of a page."""

from __future__ import annotations

import base64
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.column_defaults import scalar_of
from tidelock.column_types import to_arrow
from tidelock.errors import BadRequestError
from tidelock.replica_agent.tables.column_defaults import default_text, plain_bytes
from tidelock.wire.statements import Literal, Value

TAKEN: list[tuple[str, Value, str | None]] = [
    ("bigint", "7", "7"),
    ("tinyint", "-128", "-128"),
    ("double", "1e300", "1e+300"),
    ("double", "'NaN'", "nan"),
    ("double", "'-Infinity'", "-inf"),
    ("double", "-0.0", "-0"),
    ("float", "0.1", "0.1"),
    ("decimal(9,2)", "1.5", "1.50"),
    ("decimal(38,0)", "9" * 38, "9" * 38),
    ("boolean", "TRUE", "true"),
    ("string", "'it''s'", "it's"),
    ("string", "''", ""),
    ("date", "date '0001-01-01'", "0001-01-01"),
    ("date", "'9999-12-31'", "9999-12-31"),
    ("timestamp", "timestamp '2026-01-01T00:00:00Z'", "2026-01-01 00:00:00.000000Z"),
    ("timestamp_ntz", "'2026-01-01 00:00:00.000001'", "2026-01-01 00:00:00.000001"),
    ("binary", "X'00FF'", "00ff"),
    ("binary", Literal(base64.b64encode(b"\0\xff").decode(), base64=True), "00ff"),
    ("bigint", "+7", "7"),
    ("decimal(9,9)", "0.000000001", "0.000000001"),
    ("decimal(38,38)", "-1e-38", "-0." + "0" * 37 + "1"),
    ("decimal(20,0)", Literal(2**63), str(2**63)),
    ("timestamp", "'2026-01-01T00:00:00+02:00'", "2025-12-31 22:00:00.000000Z"),
    ("bigint", " null ", None),
    ("bigint", Literal(None), None),
    ("array<bigint>", "null", None),
    ("int", Literal(7), "7"),
    ("double", Literal(7), "7"),
    ("decimal(9,2)", Literal("1.50"), "1.50"),
    ("date", Literal("2026-01-01"), "2026-01-01"),
    ("boolean", Literal(False), "false"),
]


@pytest.mark.parametrize(("kind", "value", "text"), TAKEN, ids=str)
def test_a_constant_becomes_text_that_gives_it_back(kind: str, value: Value, text: str | None) -> None:
    """Of every type; the text of the text is itself."""
    assert default_text("c", kind, value) == text
    scalar = scalar_of(kind, text)
    assert scalar.type == to_arrow(kind)
    assert (text is None) == (scalar.as_py() is None)


REFUSED: list[tuple[str, Value]] = [
    ("bigint", "now()"),
    ("bigint", "1 + 1"),
    ("bigint", "'7'"),
    ("bigint", "7.5"),
    ("tinyint", "128"),
    ("boolean", "1"),
    ("string", "7"),
    ("string", "x'00'"),
    ("string", "'a' || 'b'"),
    ("binary", "'00'"),
    ("binary", "x'0'"),
    ("date", "timestamp '2026-01-01'"),
    ("date", "'2026-02-30'"),
    ("timestamp", "'2026-01-01T00:00:00'"),
    ("timestamp", "'10000-01-01T00:00:00Z'"),
    ("timestamp", "'9999-12-31T23:59:59-01:00'"),
    ("timestamp", "'0001-01-01T00:00:00+12:00'"),
    ("date", "'0000-01-01'"),
    ("binary", "77"),
    ("binary", "1e10"),
    ("float", "1e39"),
    ("double", "1e400"),
    ("bigint", Literal(2**63)),
    ("decimal(9,2)", "1.555"),
    ("decimal(9,2)", "12345678.00"),
    ("array<bigint>", "[1]"),
    ("int", Literal(2**31)),
    ("int", Literal(True)),
    ("int", Literal(1.5)),
    ("boolean", Literal(1)),
    ("string", Literal(7)),
    ("binary", Literal("no base64!", base64=True)),
    ("string", Literal("AA==", base64=True)),
    ("string", "'" + "a" * 257 + "'"),
    ("string", "'" + "ü" * 129 + "'"),
    ("bigint", ""),
]


@pytest.mark.parametrize(("kind", "value"), REFUSED, ids=str)
def test_what_is_no_constant_of_the_type_is_refused(kind: str, value: Value) -> None:
    """With the column; a default that is computed would be another one on each replica."""
    with pytest.raises(BadRequestError) as raised:
        default_text("c", kind, value)
    assert raised.value.details["column"] == "c"


def test_the_length_of_a_default_is_bounded() -> None:
    """In bytes, and by a setting."""
    assert default_text("c", "string", "'" + "a" * 256 + "'") == "a" * 256
    with pytest.raises(BadRequestError, match=r"has 3 bytes; the limit is 2 \(column_default_bytes_max\)"):
        default_text("c", "string", "'abc'", 2)


@given(value=st.integers(-(2**63), 2**63 - 1), text=st.text(max_size=20), number=st.floats())
def test_values_are_stored_as_parquet_does(value: int, text: str, number: float) -> None:
    """Integers and floats in little endian, texts behind their length."""
    assert plain_bytes("bigint", str(value)) == struct.pack("<q", value)
    data = text.encode()
    assert plain_bytes("string", text) == struct.pack("<I", len(data)) + data
    stored = default_text("c", "double", f"'{number}'")
    assert stored is not None
    (found,) = struct.unpack("<d", plain_bytes("double", stored))
    assert math.isnan(found) if math.isnan(number) else struct.pack("<d", found) == struct.pack("<d", number)


def test_values_of_other_types_are_stored() -> None:
    """Decimals as integers where they fit, longer ones in big endian."""
    assert plain_bytes("decimal(9,2)", "-1.50") == struct.pack("<i", -150)
    assert plain_bytes("decimal(18,2)", "1.50") == struct.pack("<q", 150)
    assert plain_bytes("decimal(38,0)", "-1") == b"\xff" * 16
    assert plain_bytes("boolean", "true") == b"\1"
    assert plain_bytes("binary", "00ff") == b"\2\0\0\0\0\xff"
    assert plain_bytes("date", "1969-12-31") == struct.pack("<i", -1)
