"""The files that an import takes, and the partitions that their folders name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelock.client.writes.file_import import import_files_of
from tidelock.errors import BadRequestError


@pytest.mark.parametrize(
    ("named", "file", "depth", "partition"),
    [
        ("", "a.parquet", 0, ""),
        ("", "day=1/a.parquet", 1, "day=1"),
        ("", "lake/day=1/city=Z%2F1/a.parquet", 2, "day=1/city=Z%2F1"),
        ("day=1", "day=1/a.parquet", 1, "day=1"),
        ("day=1/a.parquet", "day=1/a.parquet", 1, "day=1"),
        ("run=5/day=1", "run=5/day=1/a.parquet", 1, "day=1"),
        ("run=5", "run=5/a.parquet", 0, ""),
        ("", "city=Bern/a.parquet", 2, ""),
        ("", "day=1/plain/a.parquet", 2, ""),
    ],
)
def test_the_innermost_folders_name_the_partition(
    tmp_path: Path, named: str, file: str, depth: int, partition: str
) -> None:
    """Above and below the path that was named; the agent refuses a file without one where it needs one."""
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    (found,) = import_files_of([tmp_path / named], depth)
    assert (found.path, found.partition) == (path, partition)


@pytest.mark.parametrize(
    ("file", "depth"),
    [("day=1/a.parquet", 0), ("day=1/city=2/a.parquet", 1), ("day=1/x/city=2/a.parquet", 1)],
)
def test_no_value_of_a_folder_is_lost(tmp_path: Path, file: str, depth: int) -> None:
    """A folder of a column that is no partition column holds values that are nowhere else."""
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(BadRequestError, match=f"the table has {depth} partition columns?: day=1, of which"):
        import_files_of([tmp_path], depth)


def test_an_import_of_nothing_is_refused() -> None:
    """An empty list is a mistake of the caller."""
    with pytest.raises(BadRequestError, match="the list of files is empty"):
        import_files_of([], 1)
