"""VARIANT of Parquet has no layout that all readers of a table understand (ADR 0071)."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq


def test_arrow_reads_variant_as_its_bytes(tmp_path: Path) -> None:
    """If this fails, Arrow knows the type now, and ADR 0071 is to be decided again."""
    file = tmp_path / "variant.parquet"
    rows = """select '{"a": 1, "b": ["x", null]}'::json::variant as doc"""
    duckdb.execute(f"copy ({rows}) to '{file}' (format parquet)")
    assert duckdb.execute(f"select doc.a::int, typeof(doc) from '{file}'").fetchall() == [(1, "VARIANT")]
    found = pq.read_schema(file).field("doc").type
    assert pa.types.is_struct(found)
    assert {"metadata", "value"} <= {field.name for field in found}
