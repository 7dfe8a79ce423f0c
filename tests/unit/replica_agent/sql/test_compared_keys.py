"""The keys of staged files, compared with each other and with a table of which they are not yet a part."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.replicas.datadir import DataDir
from tests.support.replicas.mutations import Done, after, run
from tidelock.csnlog.core.ids import PartId
from tidelock.errors import DuplicateKeyError
from tidelock.replica_agent.sql.mutation import CompareKeys

SCHEMA = pa.schema(
    [
        pa.field("p", pa.int32(), nullable=False),
        pa.field("k", pa.string(), nullable=False),
        ("v", pa.int64()),
    ]
)
KEY = ("p", "k")
Row = tuple[int, str, int]

#: Few keys, so that many are equal; some need care in SQL.
_rows = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["", "a", "A", "ü", "'", "a\0b"]), st.integers(0, 9)),
    max_size=8,
)


def world(folder: Path, before: Sequence[Sequence[Row]], staged: Sequence[Sequence[Row]]) -> list[PartId]:
    """Make a table with the rows of some commits, and return the parts of a last commit, the staged ones."""
    directory = DataDir(folder)
    directory.create_table(
        2, "t", SCHEMA, partition_by=["p"], properties={"unique_key": "p,k", "on_duplicate": "replace"}
    )
    new: list[PartId] = []
    for csn, (rows, is_new) in enumerate([*((r, False) for r in before), *((r, True) for r in staged)], 3):
        table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
        made = directory.insert(csn, {"default.t": table}, row_group_rows=2)
        new += [part.part for part in made if is_new]
    return new


def compared(folder: Path, parts: Sequence[PartId], *, replace: bool) -> tuple[DataDir, Done]:
    """Compare the keys of parts."""
    directory = DataDir.__new__(DataDir)
    directory.path = folder
    return directory, run(directory, "t", CompareKeys(KEY, tuple(parts), replace=replace))


@given(st.lists(_rows, max_size=3), st.lists(_rows, min_size=1, max_size=2))
def test_rows_with_new_keys_are_accepted_and_others_are_not(
    before: list[list[Row]], staged: list[list[Row]]
) -> None:
    """Against a model: refused with one of the keys, or replaced, down to the row groups that stay."""
    old: dict[tuple[int, str], Row] = {}
    commits: list[list[Row]] = []
    for rows in before:
        fresh = {row[:2]: row for row in rows if row[:2] not in old}
        old |= fresh
        commits.append([*fresh.values()])
    keys = Counter(row[:2] for rows in staged for row in rows)
    twice = {key for key, count in keys.items() if count > 1}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        parts = world(path, [rows for rows in commits if rows], [rows for rows in staged if rows])
        if not parts:
            return
        taken = twice | (keys.keys() & old.keys())
        if taken:
            with pytest.raises(DuplicateKeyError) as refused:
                compared(path, parts, replace=False)
            assert refused.value.details["keys"] == len(taken)
            key = refused.value.details["key"]
            assert (int(key["p"]), key["k"]) in taken
        else:
            assert compared(path, parts, replace=False)[1].affected.parts == ()
        if twice:
            with pytest.raises(DuplicateKeyError, match="several of the rows have the key"):
                compared(path, parts, replace=True)
            return
        directory, done = compared(path, parts, replace=True)
        left = [row for key, row in old.items() if key not in keys]
        assert after(directory, "t", done) == Counter([*left, *(row for rows in staged for row in rows)])
        assert done.ended.rows_deleted == len(old) - len(left)
        assert done.affected.rows_to_insert == sum(keys.values())


def test_only_parts_with_keys_that_could_be_equal_are_read(tmp_path: Path) -> None:
    """The others are ruled out by their partition, or by their smallest and largest key."""
    before = [[(0, "a", 1)], [(1, "x", 2)], [(1, "m", 3)]]
    parts = world(tmp_path / "data", before, [[(1, "m", 4)]])
    _, done = compared(tmp_path / "data", parts, replace=True)
    assert len(done.affected.parts) == 1
    assert done.rows.num_rows == 0
    assert done.affected.keys == (1, 1)
