"""The paths of a table's staging folder, and what each is for: the layout of Hadoop's committer. Pure.

_temporary/<run>/_temporary/<attempt>/...   the files of a task attempt
_temporary/<run>/<task>/...                 the files of a committed task
<col>=<value>/.../part-<task>-<job>....parquet   in place: the job's commit has moved it here
_SUCCESS                                    the job has ended well
.spark-staging-<job>/...                    the same layout again, for a job that replaces partitions
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from tidelock.errors import TooLargeError
from tidelock.partition_paths import SEGMENT_BYTES_MAX

#: A path below the table's folder, as its segments.
StagingPath = tuple[str, ...]

ROOT: Final[StagingPath] = ()
TEMPORARY: Final = "_temporary"
SUCCESS: Final = "_SUCCESS"

_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_DYNAMIC: Final = re.compile(rf"\.spark-staging-({_UUID})")
#: ``part-00000-<job>-c000.snappy.parquet``, ``part-00000-<job>_00001.c000.snappy.parquet``
_FILE: Final = re.compile(rf"part-\d{{5,}}-({_UUID})(?:_\d+)?[.-]c\d{{3,}}(?:\.[a-z0-9]+)*\.parquet")

#: Segments up to the name of an attempt's folder, and of a committed task's folder.
ATTEMPT_DEPTH: Final = 4
TASK_DEPTH: Final = 3
#: Segments of a path: six of the committer's layout, and those of a partition.
DEPTH_MAX: Final = 40


class PathKind(Enum):
    """The purpose of a path."""

    #: ``_temporary`` and what leads to the folders of attempts and tasks.
    SCAFFOLD = "scaffold"
    ATTEMPT = "attempt"
    TASK = "task"
    MARKER = "marker"
    #: Target of the moves by a job's commit; for a job that replaces partitions not yet the table's folder.
    RESULT = "result"


def job_folder(place: StagingPath) -> StagingPath:
    """Return the folder in which the committer of a path works: the table's, or ``.spark-staging-<job>``."""
    return place[:1] if place and _DYNAMIC.fullmatch(place[0]) else ROOT


def dynamic_job(place: StagingPath) -> str | None:
    """Return the job whose ``.spark-staging-<job>`` contains a path, None outside such a folder."""
    found = _DYNAMIC.fullmatch(place[0]) if place else None
    return found[1] if found else None


def kind_of(place: StagingPath) -> PathKind:
    """Return the purpose of a path."""
    inner = place[len(job_folder(place)) :]
    if inner == (SUCCESS,):
        return PathKind.MARKER
    if inner[:1] != (TEMPORARY,):
        return PathKind.RESULT
    if inner[2:3] == (TEMPORARY,):
        return PathKind.ATTEMPT if len(inner) >= ATTEMPT_DEPTH else PathKind.SCAFFOLD
    return PathKind.TASK if len(inner) >= TASK_DEPTH else PathKind.SCAFFOLD


def job_of_file(place: StagingPath) -> str | None:
    """Return the job in the name of a file that Spark's Parquet writer makes; None for any other name."""
    found = _FILE.fullmatch(place[-1]) if place else None
    return found[1] if found else None


def require_names(place: StagingPath) -> None:
    """Raise TooLargeError for a path that is too deep, or has a name that is too long.

    Each prefix of a path that is made becomes a folder.
    """
    longest = max(map(len, place), default=0)
    if len(place) > DEPTH_MAX or longest > SEGMENT_BYTES_MAX:
        raise TooLargeError(
            f"a path in a table's folder has {len(place)} names, the longest of {longest} characters; it "
            f"may have at most {DEPTH_MAX} names of {SEGMENT_BYTES_MAX} characters: shorten it",
            limit=DEPTH_MAX,
            found=len(place),
        )


def is_below(place: StagingPath, folder: StagingPath) -> bool:
    """Return whether a path is a folder or anything in it."""
    return place[: len(folder)] == folder


def text_of(place: StagingPath) -> str:
    """Return a path for messages, below the table's folder."""
    return "/".join(place) or "the table's folder"
