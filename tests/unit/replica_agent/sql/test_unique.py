"""Inserts into tables with a unique key, as a SQL process runs them, beside a model of two lines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.replicas.datadir import DataDir
from tests.support.replicas.mutations import Row, after, run, stream_file
from tidelock.csnlog.core.ids import TableId
from tidelock.errors import DuplicateKeyError
from tidelock.replica_agent.sql.mutation import MergeRows

T = TableId("default.t")
SCHEMA = pa.schema(
    [pa.field("p", pa.string(), False), pa.field("k", pa.decimal128(5, 1), False), ("v", pa.int64())]
)
KEYS = st.tuples(st.sampled_from("ab"), st.integers(-3, 8))
#: The present rows, by part.
PARTS: tuple[list[tuple[str, int]], ...] = ([("a", -2), ("a", 1)], [("a", 2), ("a", 5)], [("b", 1), ("b", 9)])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> DataDir:
    """Return the table `t`."""
    made = DataDir(tmp_path_factory.mktemp("unique") / "data")
    made.create_table(2, "t", SCHEMA, partition_by=["p"])
    for number, keys in enumerate(PARTS):
        made.insert(3 + number, {T: rows(keys, -10 * number)})
    return made


def rows(keys: list[tuple[str, int]], first: int) -> pa.Table:
    """Return rows with distinct values."""
    columns = {"p": [p for p, _ in keys], "k": [k for _, k in keys], "v": range(first, first + len(keys))}
    given = pa.table({name: pa.array(column) for name, column in columns.items()})
    return given.set_column(1, "k", given["k"].cast(pa.decimal128(20, 1)).cast(SCHEMA.field("k").type)).cast(
        SCHEMA
    )


def insert(path: Path, given: pa.Table, unique: Literal["refuse", "replace"]) -> MergeRows:
    """Return the insert of some rows."""
    source = stream_file(path / "rows", given, batch_rows=3)
    return MergeRows(source, ("k", "p"), update=unique == "replace", insert=True, upsert=True, unique=unique)


def as_bag(table: pa.Table) -> list[Row]:
    """Return the rows of a table."""
    return [tuple(row.values()) for row in table.to_pylist()]


@given(st.lists(KEYS, max_size=9))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_as_the_model_says(directory: DataDir, tmp_path: Path, keys: list[tuple[str, int]]) -> None:
    """An insert is refused with the number of surplus keys, or replaces rows, and the last row counts."""
    there = {row[:2]: row for number, part in enumerate(PARTS) for row in as_bag(rows(part, -10 * number))}
    new = as_bag(rows(keys, 100))
    counts = Counter(row[:2] for row in new)
    duplicates = {key for key, count in counts.items() if count > 1 or key in there}

    done = run(directory, "t", insert(tmp_path, rows(keys, 100), "replace"))
    expected = there | {row[:2]: row for row in new}
    assert after(directory, "t", done) == Counter(expected.values())
    assert done.affected.rows_to_insert == len(counts.keys() - there.keys())
    assert done.ended.rows_updated == len(counts.keys() & there.keys())

    if duplicates:
        with pytest.raises(DuplicateKeyError) as caught:
            run(directory, "t", insert(tmp_path, rows(keys, 100), "refuse"))
        found = caught.value.details
        assert found["keys"] == len(duplicates)
        assert (found["key"]["p"], found["key"]["k"]) in {(p, str(k)) for p, k in duplicates}
        return
    done = run(directory, "t", insert(tmp_path, rows(keys, 100), "refuse"))
    assert (done.affected.parts, Counter(as_bag(done.rows))) == ((), Counter(new))
    bounds = [str(k) for _, k in sorted(counts, key=lambda key: key[1])]
    assert done.affected.keys == ((bounds[0], bounds[-1]) if keys else None)
