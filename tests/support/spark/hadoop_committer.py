"""Spark's committer on a staging area: the paths of its files, and its requests."""

from __future__ import annotations

from tidelock.replica_agent.transactions.staging_area import StagingArea
from tidelock.replica_agent.transactions.staging_paths import StagingPath

JOBS = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(100)]
TEMPORARY: StagingPath = ("_temporary",)
SUCCESS: StagingPath = ("_SUCCESS",)
#: Folder of the first job if it replaces partitions; a job deletes this folder at its end in any case.
DYNAMIC: StagingPath = (f".spark-staging-{JOBS[0]}",)


def attempt(task: int, number: int = 0, root: StagingPath = ()) -> StagingPath:
    """Return the folder of a task attempt."""
    return (*root, "_temporary", "0", "_temporary", f"attempt_1_m_{task:06d}_{number}")


def task_folder(task: int, root: StagingPath = ()) -> StagingPath:
    """Return the folder of a committed task."""
    return (*root, "_temporary", "0", f"task_1_m_{task:06d}")


def name(job: str, task: int = 0, number: int = 0) -> str:
    """Return the name of a file that Spark's writer makes."""
    return f"part-{task:05d}-{job}-c{number:03d}.snappy.parquet"


def write(area: StagingArea, place: StagingPath, length: int = 10) -> int:
    """Write a whole file."""
    number, _ = area.create(place, overwrite=False)
    assert area.finish(number, length)
    return number


def begun(root: StagingPath = ()) -> StagingArea:
    """Return an area with a running job."""
    area = StagingArea()
    assert area.make_folder((*root, "_temporary", "0"))
    return area


def commit_job(area: StagingArea, tasks: int, root: StagingPath = ()) -> None:
    """Make the requests of FileOutputCommitter 1 after the commits of all tasks, up to the mark."""
    for entry in area.entries((*root, "_temporary", "0")):
        if entry.name != "_temporary":
            merge(area, (*root, "_temporary", "0", entry.name), root)
    area.delete((*root, "_temporary"), recursive=True)


def merge(area: StagingArea, source: StagingPath, target: StagingPath) -> None:
    """Move a file or folder as Hadoop's mergePaths does."""
    moved, existing = area.entry(source), area.entry(target)
    assert moved is not None
    if moved.length is not None:
        if existing is not None:
            area.delete(target, recursive=True)
        assert area.rename(source, target)
    elif existing is None:
        assert area.rename(source, target)
    else:
        for entry in area.entries(source):
            merge(area, (*source, entry.name), (*target, entry.name))
