"""The staging folder of one table in one transaction: its files, and which of them are accepted. Pure.

The area is a file system just large enough for Hadoop's FileOutputCommitter version 1, and strict where that
committer is lenient. Files move into place only from committed tasks, one job at a time, and count only when
their job is sealed. So retries, speculative attempts, aborted attempts and zombies have no effect, whatever
their order: their files are in no committed task, or belong to a job that is over.

One job runs at a time. All jobs work in the same ``_temporary``, so that one would commit or abort the tasks
of another. The first request of a second job is refused; Spark's committer then cleans nothing up.

Nothing here touches a disk. A file is a number; operations return the numbers that are not wanted any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from tidelock.errors import BadRequestError, TooLargeError, UnsealedWriteError
from tidelock.replica_agent.transactions.staging_paths import (
    ATTEMPT_DEPTH,
    DEPTH_MAX,
    ROOT,
    TASK_DEPTH,
    TEMPORARY,
    PathKind,
    StagingPath,
    dynamic_job,
    is_below,
    job_folder,
    job_of_file,
    kind_of,
    require_names,
    text_of,
)

#: Names the setting, since the user who sees the message has to change it.
_VERSION = "mapreduce.fileoutputcommitter.algorithm.version"

#: The number of segments above the output of an attempt, and of a committed task.
_DEPTHS = {PathKind.ATTEMPT: ATTEMPT_DEPTH, PathKind.TASK: TASK_DEPTH}
#: Limit of folders and jobs that are remembered, besides the folders that files may need.
NAMES_MAX: Final = 10_000


class JobPhase(Enum):
    """The state of the job that writes to the table."""

    #: No job is at work.
    IDLE = "idle"
    #: The job has its ``_temporary``.
    RUNNING = "running"
    #: ``_temporary`` is deleted; the files that were moved into place wait for the seal.
    CLOSING = "closing"


class Entry(msgspec.Struct, frozen=True):
    """A file or folder as a listing shows it; ``length`` is None for a folder."""

    name: str
    length: int | None


class InPlace(msgspec.Struct, frozen=True):
    """A file that a job has moved into place."""

    number: int
    place: StagingPath


class Deletion(msgspec.Struct, frozen=True):
    """The result of a delete.

    Attributes:
        existed: Whether anything existed there.
        dropped: Files that are not wanted any more.
        replaces: The folder whose rows are to be replaced: the table's or a partition's, or None.
        seals: The deletion was the last act of a job that replaces partitions: the job is to be sealed.
    """

    existed: bool
    dropped: tuple[int, ...] = ()
    replaces: StagingPath | None = None
    seals: bool = False


def replaces(place: StagingPath) -> bool:
    """Return whether deleting this path replaces rows: all of the table's, or those of a partition."""
    return place == ROOT or (
        kind_of(place) is PathKind.RESULT and job_folder(place) == ROOT and "=" in place[-1]
    )


@dataclass(slots=True)
class _File:
    number: int
    job: str
    length: int | None = None  # None: still being written


class StagingArea:
    """See the module. An operation that raises changes nothing, except perhaps the answer of `unsealed`."""

    def __init__(self) -> None:
        self._files: dict[StagingPath, _File] = {}
        self._folders: set[StagingPath] = {ROOT}
        self._places: dict[int, StagingPath] = {}
        self._last = 0
        self._phase = JobPhase.IDLE
        #: The UUID of the job, once a request has named it, and the folder that has its ``_temporary``.
        self._job: str | None = None
        self._works_in: StagingPath = ROOT
        self._over: set[str] = set()
        self._settled: set[str] = set()
        self._marked = False
        #: Rows were removed for the job at work, or the next; or for a job that may have been refused since.
        self._replacing = False
        self._doubted = False

    # -- reading -------------------------------------------------------------------------------------------

    def entry(self, place: StagingPath) -> Entry | None:
        """Return what exists at a path, None for nothing."""
        name = place[-1] if place else ""
        if file := self._files.get(place):
            return Entry(name, file.length or 0)
        return Entry(name, None) if place in self._folders else None

    def entries(self, folder: StagingPath) -> list[Entry]:
        """Return the entries of a folder, by name."""
        depth = len(folder) + 1
        inside = [p for p in (*self._files, *self._folders) if len(p) == depth and is_below(p, folder)]
        return [entry for place in sorted(inside) if (entry := self.entry(place)) is not None]

    def below(self, folder: StagingPath) -> tuple[int, ...]:
        """Return the files in a folder, however deep."""
        return tuple(file.number for place, file in self._files.items() if is_below(place, folder))

    @property
    def at_work(self) -> bool:
        """Return whether a job writes. A job that replaces partitions does until it deletes its folder."""
        moves = self._phase is JobPhase.CLOSING and self._works_in != ROOT and self._works_in in self._folders
        return self._phase is JobPhase.RUNNING or moves

    def unsealed(self) -> str | None:
        """Return why the transaction cannot be committed now, None if it can."""
        if self.at_work or any(TEMPORARY in place for place in self._folders):
            return f"the job {self._job or 'that writes to it'} has not ended"
        if self._files:
            jobs = ", ".join(sorted({file.job for file in self._files.values()}))
            return f"files of job {jobs} were not sealed: it has failed, or has left no _SUCCESS"
        if self._replacing:
            return "its rows were removed for a write that has not ended"
        if self._doubted:
            return "its rows were removed for one of two writes that began at once, and one was refused"
        return None

    # -- writing -------------------------------------------------------------------------------------------

    def make_folder(self, place: StagingPath) -> bool:
        """Make a folder and its parents; False if a file is in the way.

        Raises:
            BadRequestError: The folder would begin a job while another is at work, or after a job has left
                the table without rows that it was to replace; or the folder is for a job that has not begun.
            TooLargeError: It is too deep, or too many folders exist.
        """
        self._require_room(place)
        if any(place[:depth] in self._files for depth in range(1, len(place) + 1)):
            return False
        kind, folder, job = kind_of(place), job_folder(place), dynamic_job(place)
        if kind is PathKind.SCAFFOLD:
            self._require_turn(folder, job)
            self._begin(folder, job)
        elif kind in _DEPTHS and self._phase is not JobPhase.RUNNING:
            raise BadRequestError(f"{text_of(place)} belongs to no job that has begun")
        self._add_folders(place)
        return True

    def check_create(self, place: StagingPath, *, overwrite: bool) -> str:
        """Return the job of a file that may be made here.

        Raises:
            BadRequestError: It is no file of Spark's Parquet writer, or not where an attempt writes; its job
                is over; another job writes to the table, or has left it without rows that it was to replace;
                something exists there, and is not to be replaced.
            TooLargeError: It is too deep, or too many folders exist.
        """
        self._require_room(place)
        job = job_of_file(place)
        if kind_of(place) is not PathKind.ATTEMPT or job is None or dynamic_job(place) not in {None, job}:
            raise BadRequestError(
                f"{text_of(place)} cannot be written: only Spark's Parquet writer with its "
                f"FileOutputCommitter ({_VERSION}=1) writes here, each attempt below _temporary"
            )
        self._require_turn(job_folder(place), job)
        if place in self._folders or (place in self._files and not overwrite):
            raise BadRequestError(f"{text_of(place)} exists already")
        if any(place[:depth] in self._files for depth in range(1, len(place))):
            raise BadRequestError(f"a file is where a folder of {text_of(place)} would be")
        return job

    def create(self, place: StagingPath, *, overwrite: bool) -> tuple[int, tuple[int, ...]]:
        """Begin a file; return its number and the files that it replaces. Raises as :meth:`check_create`."""
        job = self.check_create(place, overwrite=overwrite)
        dropped = self._drop([place])
        self._begin(job_folder(place), job)
        self._add_folders(place[:-1])
        self._last += 1
        self._files[place] = _File(self._last, job)
        self._places[self._last] = place
        return self._last, dropped

    def finish(self, number: int, length: int) -> bool:
        """Note that a file is written; False if it was deleted meanwhile, and is not wanted."""
        place = self._places.get(number)
        if place is None:
            return False
        self._files[place].length = length
        return True

    def abandon(self, number: int) -> None:
        """Remove a file that could not be written."""
        place = self._places.get(number)
        if place is not None:
            self._drop([place])

    def rename(self, source: StagingPath, target: StagingPath) -> bool:
        """Move a file or a folder with all its content; False where Hadoop expects False.

        Raises:
            BadRequestError: The committer may not do this; see the module.
            TooLargeError: The new path is too deep, or a name in it too long.
        """
        require_names(target)
        if self.entry(source) is None or self.entry(target) is not None or is_below(target, source):
            return False
        if self.entry(target[:-1]) is None or target[:-1] in self._files:
            return False
        moved = [place for place in self._files if is_below(place, source)]
        if any(self._files[place].length is None for place in moved):
            raise BadRequestError(f"{text_of(source)} is still being written")
        self._check_move(source, target)
        for place in moved:
            file = self._files.pop(place)
            self._files[target + place[len(source) :]] = file
            self._places[file.number] = target + place[len(source) :]
        for folder in [place for place in self._folders if is_below(place, source)]:
            self._folders.remove(folder)
            self._folders.add(target + folder[len(source) :])
        return True

    def delete(self, place: StagingPath, *, recursive: bool) -> Deletion:
        """Delete a file or a folder; the answer says what the caller has to do.

        Raises:
            BadRequestError: The folder is not empty, and the deletion is not recursive; or rows were to be
                replaced while a job is at work.
            TooLargeError: The path is too deep, or too many folders or jobs exist.
        """
        if replaces(place):
            return self._replace(place)
        if not recursive and self.entries(place):
            raise BadRequestError(f"{text_of(place)} is not empty")
        if (job := dynamic_job(place)) is not None and place == job_folder(place):
            return self._delete_job(place, job)
        if place == (*self._works_in, TEMPORARY):
            self._marked = False  # the job is aborted although it got so far
            self._close()
        if self.entry(place) is None:
            return Deletion(existed=False)
        return Deletion(existed=True, dropped=self._drop_below(place))

    def mark(self, place: StagingPath) -> bool:
        """Accept a ``_SUCCESS``; return whether it seals.

        Raises:
            UnsealedWriteError: Tasks of the job are still at work, or another job is to be sealed.
        """
        if self._phase is JobPhase.RUNNING:
            raise _not_closed()
        folder = job_folder(place)
        if folder != self._works_in:
            raise UnsealedWriteError(f"{text_of(place)} belongs to no job that can be sealed now")
        self._marked = folder != ROOT
        return not self._marked

    # -- sealing -------------------------------------------------------------------------------------------

    def closing(self) -> list[InPlace]:
        """Return the files of the job that has ended, which are to become parts.

        Raises:
            UnsealedWriteError: The job has not ended.
        """
        if self.at_work:
            raise _not_closed()
        mine = [
            (file, place)
            for place, file in self._files.items()
            if file.job == self._job and kind_of(place) is PathKind.RESULT
        ]
        return [InPlace(file.number, place) for file, place in sorted(mine, key=lambda item: item[1])]

    def seal(self, sealed: Iterable[InPlace]) -> None:
        """Forget the files of :meth:`closing`, which are parts now. Another job may have begun since."""
        self._drop([item.place for item in sealed])
        if self._phase is JobPhase.CLOSING:
            files = [*self._files]
            self._folders = {place for place in self._folders if any(is_below(file, place) for file in files)}
            self._folders.add(ROOT)
            self._end()
            self._replacing = False

    def settle(self, job: str, wanted: Iterable[StagingPath]) -> tuple[int, ...]:
        """End a job by naming the files that count, in place of the renames of a committer.

        These files are put into place. All other files of the job are not wanted; its later requests are
        refused.

        Returns:
            The files that are not wanted any more.

        Raises:
            UnsealedWriteError: A file does not exist, or is not whole; or the job was ended, and its files
                deleted.
            BadRequestError: Another job writes to the table, or has left it without rows that it was to
                replace; or two files would have the same path.
        """
        if job in self._settled:
            return ()  # the request is a repetition
        if job in self._over:
            raise UnsealedWriteError(f"job {job} was ended before its files were named; nothing was kept")
        self._require_turn(ROOT, job)
        moved: dict[StagingPath, StagingPath] = {}
        for place in wanted:
            file = self._files.get(place)
            depth = _DEPTHS.get(kind_of(place))
            if file is None or file.length is None or file.job != job or depth is None:
                raise UnsealedWriteError(f"{text_of(place)} of job {job} does not exist, or is incomplete")
            target = place[depth:]
            if target in moved or target in self._files:
                raise BadRequestError(f"two files of job {job} are called {text_of(target)}")
            moved[target] = place
        for target, place in moved.items():
            file = self._files.pop(place)
            self._files[target] = file
            self._places[file.number] = target
            self._add_folders(target[:-1])
        self._phase, self._job, self._works_in, self._marked = JobPhase.CLOSING, job, ROOT, False
        self._over.add(job)
        self._settled.add(job)
        self._folders = {place for place in self._folders if place[:1] != (TEMPORARY,)}
        return self._drop(
            [place for place, file in self._files.items() if file.job == job and place not in moved]
        )

    # -- inside --------------------------------------------------------------------------------------------

    def _require_room(self, place: StagingPath) -> None:
        """Raise TooLargeError unless a path may be made, or a job remembered."""
        require_names(place)
        limit = NAMES_MAX + DEPTH_MAX * len(self._files)
        found = len(self._folders) + len(self._over)
        if place not in self._folders and found >= limit:
            raise TooLargeError(
                f"there are {found} folders and jobs in this table's folder of the transaction, the limit is "
                f"{limit}: write in several transactions",
                limit=limit,
                found=found,
            )

    def _require_turn(self, folder: StagingPath, job: str | None) -> None:
        """Raise BadRequestError unless a job that works in a folder may go on, or may begin.

        A request without the job's id can only begin a job. If it counted as a repetition, two jobs that
        begin at once would share a ``_temporary``.
        """
        if job in self._over:
            raise BadRequestError(f"job {job} is over, so this attempt of it is refused; nothing was kept")
        at_work = self.at_work
        goes_on = job is not None and self._job in {None, job} and folder == self._works_in
        # A job that replaces partitions removes nothing before it begins.
        owed = self._replacing and (self._phase is JobPhase.CLOSING or folder != ROOT)
        if not goes_on if at_work else owed:
            # When two jobs begin at once, the area cannot know which of them had the rows removed.
            self._doubted |= self._replacing and job is None
            if at_work:
                raise self._at_work()
            raise BadRequestError(
                f"{self._name()} has removed rows of this table, and was not sealed: what is added now would "
                "be committed without the rows that were to replace them; overwrite all of the table, or "
                "roll back"
            )

    def _at_work(self) -> BadRequestError:
        return BadRequestError(
            f"{self._name()} is still writing to this table in this transaction; write one after the other, "
            "or roll back if it has failed"
        )

    def _name(self) -> str:
        return f"job {self._job}" if self._job else "a job"

    def _begin(self, folder: StagingPath, job: str | None) -> None:
        """Begin a job with what is made below ``_temporary``, unless it is at work."""
        if self._phase is not JobPhase.RUNNING:
            self._end()
            self._phase, self._works_in = JobPhase.RUNNING, folder
        self._job = job

    def _close(self) -> None:
        if self._phase is JobPhase.RUNNING:
            self._phase = JobPhase.CLOSING
            if self._job is not None:
                self._over.add(self._job)

    def _end(self) -> None:
        self._close()
        self._phase, self._job, self._works_in, self._marked = JobPhase.IDLE, None, ROOT, False

    def _delete_job(self, folder: StagingPath, job: str) -> Deletion:
        """Drop the folder of a job, which Spark deletes last, in success and in failure.

        Spark also does so for a job that has worked in the table's folder. So a job that was aborted before
        its first file is known by this deletion alone, and its later requests are refused.
        """
        if job not in self._over:
            self._require_room(folder)
        existed, dropped = self.entry(folder) is not None, self._drop_below(folder)
        # An aborted job that replaces partitions leaves files.
        seals = self._phase is JobPhase.CLOSING and self._job == job and self._marked and not dropped
        if self._phase is JobPhase.RUNNING and self._job == job:
            dropped += self._drop_below((*self._works_in, TEMPORARY))
            self._close()
        self._over.add(job)
        return Deletion(existed, dropped, seals=seals)

    def _replace(self, place: StagingPath) -> Deletion:
        """Remove rows of the table or of a partition, and what this transaction has staged there."""
        self._require_room(place)
        if self._phase is JobPhase.RUNNING or (place == ROOT and self.at_work):
            raise self._at_work()
        if place == ROOT:
            self._end()
            self._doubted = False
        dropped = self._drop_below(place)
        # A client that reads "existed" expects a folder to rename into.
        self._add_folders(place[:-1])
        self._replacing = True
        return Deletion(existed=True, dropped=dropped, replaces=place)

    def _check_move(self, source: StagingPath, target: StagingPath) -> None:
        kinds = kind_of(source), kind_of(target)
        same = job_folder(source) == job_folder(target)
        if kinds == (PathKind.ATTEMPT, PathKind.RESULT):
            raise BadRequestError(
                "a task was to be moved straight into the table, before the commit of its job: set "
                f"{_VERSION}=1 (spark.hadoop." + _VERSION + "), and write again"
            )
        if same and kinds in {(PathKind.ATTEMPT, PathKind.TASK), (PathKind.TASK, PathKind.RESULT)}:
            return
        if (
            self._marked
            and kinds == (PathKind.RESULT, PathKind.RESULT)
            and job_folder(target) == ROOT
            and not same
        ):
            return
        raise BadRequestError(
            f"{text_of(source)} cannot be moved to {text_of(target)}: only Spark's FileOutputCommitter "
            f"({_VERSION}=1) writes here"
        )

    def _add_folders(self, place: StagingPath) -> None:
        self._folders.update(place[:depth] for depth in range(1, len(place) + 1))

    def _drop_below(self, folder: StagingPath) -> tuple[int, ...]:
        self._folders = {place for place in self._folders if not is_below(place, folder)} | {ROOT}
        return self._drop([place for place in self._files if is_below(place, folder)])

    def _drop(self, places: Iterable[StagingPath]) -> tuple[int, ...]:
        files = [file for place in places if (file := self._files.pop(place, None)) is not None]
        for file in files:
            del self._places[file.number]
        return tuple(file.number for file in files)


def _not_closed() -> UnsealedWriteError:
    return UnsealedWriteError("tasks of the job that writes to this table are still at work")
