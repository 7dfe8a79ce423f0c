"""Types of columns as Spark reads them from the properties of a table."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql.types import StructType

from tests.support.nested import nested_types
from tests.support.rows import ALL_TYPES
from tidelock.column_types import to_text
from tidelock.metastore.spark_types import properties
from tidelock.spark.schema import struct_of


def read_back(columns: list[dict[str, Any]], keys: list[str]) -> StructType:
    """Return what Spark makes of the properties."""
    return StructType.fromJson(json.loads(properties(columns, keys)["spark.sql.sources.schema"]))


@pytest.mark.parametrize("nullable", [True, False])
def test_each_type_is_that_of_an_attached_table(nullable: bool) -> None:
    """Names of any letters, and whether a column may be null, are kept."""
    columns = [
        {"name": f"Größe von {name}", "type": to_text("c", kind), "nullable": nullable}
        for name, kind in ALL_TYPES.items()
    ]
    assert read_back(columns, []) == struct_of({"columns": columns})


@given(nested_types())
def test_any_nested_type_is_that_of_an_attached_table(kind: pa.DataType) -> None:
    """Inside of a type all may be null, whatever its source says."""
    columns = [{"name": "c", "type": to_text("c", kind), "nullable": True}]
    assert read_back(columns, []) == struct_of({"columns": columns})


def test_partition_columns_are_named_in_their_order() -> None:
    """Spark takes them from properties of their own."""
    columns = [{"name": name, "type": "int", "nullable": True} for name in ("v", "b", "a")]
    found = properties(columns, ["b", "a"])
    assert [
        found[f"spark.sql.sources.schema.{name}"] for name in ("numPartCols", "partCol.0", "partCol.1")
    ] == [
        "2",
        "b",
        "a",
    ]
    assert "spark.sql.sources.schema.numPartCols" not in properties(columns, [])
