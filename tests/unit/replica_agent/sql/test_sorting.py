"""Compaction of rows that the engine cannot sort at once: cut into ranges, in one order, no row lost."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.replicas.datadir import DataDir
from tests.support.replicas.mutations import as_rows, run
from tidelock.csnlog.core.ids import TableId
from tidelock.replica_agent.sql import sorting
from tidelock.replica_agent.sql.mutation import CompactParts

T = TableId("default.t")
NOW = datetime(2024, 5, 1, tzinfo=UTC)
KEYS: dict[str, Any] = {
    "bigint": (pa.int64(), lambda n: n - 500),
    "string": (pa.string(), lambda n: f"ü{n % 97}" if n % 5 else ""),
    "decimal": (pa.decimal128(9, 2), lambda n: n),
    "timestamp": (pa.timestamp("us", "UTC"), lambda n: NOW + timedelta(microseconds=7 * n)),
    "binary": (pa.binary(), lambda n: bytes([n % 256, 0, 39])),
    "boolean": (pa.bool_(), lambda n: n % 2 == 0),
    "one value": (pa.int32(), lambda _: 7),
    "only nulls": (pa.int32(), lambda _: None),
    "double": (pa.float64(), lambda n: float("nan") if n % 9 == 0 else n / 7),
}


@pytest.mark.parametrize("key", KEYS)
def test_sorting_in_ranges_gives_the_engines_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Values of every type have the order of the engine's own sort, nulls last, and all rows are there."""
    kind, make = KEYS[key]
    chosen = random.Random(key)
    directory = DataDir(tmp_path / "data")
    schema = pa.schema([("p", pa.string()), ("k", kind), ("n", pa.int64())])
    directory.create_table(2, "t", schema, partition_by=["p"], sort_by=["k", "n"])
    rows = []
    for part in range(4):
        numbers = [chosen.randrange(1000) for _ in range(300)]
        keys = [None if n % 11 == 0 else make(n) for n in numbers]
        rows.append(pa.table({"p": ["a"] * 300, "k": pa.array(keys, kind), "n": numbers}, schema))
        directory.insert(3 + part, {T: rows[-1]})
    parts = tuple(part.part for part in directory.parts(T))
    whole = run(directory, "t", CompactParts(parts)).rows
    cut: list[int] = []

    def ranges(*_: object) -> int:
        cut.append(5)
        return 5

    monkeypatch.setattr(sorting, "_ranges", ranges)
    done = run(directory, "t", CompactParts(parts))
    assert as_rows(done.rows) == as_rows(pa.concat_tables(rows)) or key == "double"
    assert str(done.rows.to_pydict()) == str(whole.to_pydict())
    assert cut == ([] if key == "double" else [5])
