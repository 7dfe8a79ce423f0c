"""Spark's committer on a staging area: the places of its files, and its requests."""

from __future__ import annotations

from tidelock.replica_agent.transactions.staging_area import StagingArea
from tidelock.replica_agent.transactions.staging_paths import StagingPath

JOBS = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(100)]
TEMPORARY: StagingPath = ("_temporary",)
SUCCESS: StagingPath = ("_SUCCESS",)
#: Where the first job works when it replaces partitions; deleted at its end if it does not, too.
DYNAMIC: StagingPath = (f".spark-staging-{JOBS[0]}",)


def attempt(task: int, number: int = 0, root: StagingPath = ()) -> StagingPath:
    """The folder of a task attempt."""
    return (*root, "_temporary", "0", "_temporary", f"attempt_1_m_{task:06d}_{number}")


def task_folder(task: int, root: StagingPath = ()) -> StagingPath:
    """The folder of a committed task."""
    return (*root, "_temporary", "0", f"task_1_m_{task:06d}")


def name(job: str, task: int = 0, number: int = 0) -> str:
    """The name of a file that Spark's writer makes."""
    return f"part-{task:05d}-{job}-c{number:03d}.snappy.parquet"


def write(area: StagingArea, place: StagingPath, length: int = 10) -> int:
    """Write a whole file."""
    number, _ = area.create(place, overwrite=False)
    assert area.finish(number, length)
    return number


def begun(root: StagingPath = ()) -> StagingArea:
    """An area with a job at work."""
    area = StagingArea()
    assert area.make_folder((*root, "_temporary", "0"))
    return area


def commit_job(area: StagingArea, tasks: int, root: StagingPath = ()) -> None:
    """What FileOutputCommitter 1 does when all tasks are committed, up to the mark."""
    for entry in area.entries((*root, "_temporary", "0")):
        if entry.name != "_temporary":
            merge(area, (*root, "_temporary", "0", entry.name), root)
    area.delete((*root, "_temporary"), recursive=True)


def merge(area: StagingArea, source: StagingPath, target: StagingPath) -> None:
    """Hadoop's mergePaths."""
    found, there = area.entry(source), area.entry(target)
    assert found is not None
    if found.length is not None:
        if there is not None:
            area.delete(target, recursive=True)
        assert area.rename(source, target)
    elif there is None:
        assert area.rename(source, target)
    else:
        for entry in area.entries(source):
            merge(area, (*source, entry.name), (*target, entry.name))
