"""The staging folder under jobs of Spark that begin, fail, and run into each other at any point.

Each job is Spark's, request by request (`HadoopMapReduceCommitProtocol` over `FileOutputCommitter` 1), and a
generator, so that the requests of several jobs interleave. The final rows of the table, if they could be
committed, are compared with the intended rows of those jobs that have ended well for Spark.

A server cannot know two things, since neither the first nor the last requests of a job name it. When a whole
job passes between the first two requests of an overwrite, it cannot know whose rows were removed. When an
overwrite begins between the last two requests of a job, it cannot know whose mark arrives. The first case is
left out, the second does not happen here.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelock.errors import TidelockError
from tidelock.replica_agent.transactions.staging_area import StagingArea
from tidelock.replica_agent.transactions.staging_paths import ROOT, StagingPath, is_below

PARTITIONS: list[StagingPath] = [("a=1", "b=1"), ("a=1", "b=2"), ("a=2", "b=1")]


class JobError(Exception):
    """Spark's job fails, by itself or since a request was not answered as it has to be."""


@dataclass
class Table:
    """A table in a transaction: its folder, and the files that are its rows."""

    area: StagingArea = field(default_factory=StagingArea)
    rows: dict[int, StagingPath] = field(
        default_factory=lambda: {0: (*PARTITIONS[2], "of another transaction")}
    )
    #: Folders of attempts that Spark has forgotten, and that go on.
    zombies: list[tuple[StagingPath, str]] = field(default_factory=list)
    #: Counts what follows.
    time: int = 0
    #: Jobs in the table's own folder that were sealed; and whether one has passed an overwrite.
    sealed: int = 0
    overtaken: bool = False
    #: The replacements: time, folder, and job.
    replaced: list[tuple[int, StagingPath, str]] = field(default_factory=list)

    def delete(self, place: StagingPath, job: str) -> None:
        """Delete a path as the home does."""
        found = self.area.delete(place, recursive=True)
        if found.replaces is not None:
            self.rows = {number: row for number, row in self.rows.items() if not is_below(row, place)}
            self.time += 1
            self.replaced.append((self.time, place, job))
        if found.seals:
            self.seal()

    def seal(self) -> None:
        """Turn the files of the job that has ended into rows."""
        found = self.area.closing()
        self.rows |= {item.number: item.place for item in found}
        self.area.seal(found)


class Job:
    """One job. `mode`: append, overwrite, or partitions."""

    def __init__(self, table: Table, number: int, mode: str, chance: random.Random) -> None:
        self.table, self.mode, self.chance = table, mode, chance
        self.id = f"{number:08d}-0000-4000-8000-000000000000"
        self.own: StagingPath = (f".spark-staging-{self.id}",)
        self.root: StagingPath = self.own if mode == "partitions" else ROOT
        self.written: dict[int, StagingPath] = {}
        self.partitions: set[StagingPath] = set()
        #: How it has ended: well, failed (by itself), hurt (by an answer), refused (at its beginning).
        self.ended = ""
        self.moved_at = 0

    def steps(self) -> Iterator[None]:
        """Its requests, one after the other."""
        area = self.table.area
        try:
            if self.mode == "overwrite":
                self._delete(ROOT)
                before = self.table.sealed
                yield
                self.table.overtaken |= self.table.sealed > before
            area.make_folder((*self.root, "_temporary", "0"))
        except TidelockError:
            self.ended = "refused"  # and nothing more is asked for
            return
        yield
        try:
            yield from self._tasks()
            yield from self._commit()
        except (JobError, TidelockError) as error:
            self.ended = str(error) if isinstance(error, JobError) else "hurt"
            for place in ((*self.root, "_temporary"), self.own):
                self._delete(place)
                yield
        else:
            self.ended = "well"

    def _tasks(self) -> Iterator[None]:
        for task in range(self.chance.randrange(3)):
            for number in range(4):
                folder = (*self.root, "_temporary", "0", "_temporary", f"attempt_{self.id}_{task}_{number}")
                self._fail(0.05)
                if self.chance.random() < 0.15:
                    self.table.zombies.append((folder, self.id))
                    continue
                files = yield from self._attempt(folder, task)
                if self.chance.random() < 0.15:
                    self._delete(folder)
                    continue
                self._commit_task(folder, task)
                self.written |= files
                self.partitions.update(place[:-1] for place in files.values())
                yield
                break
            else:
                raise JobError("failed")

    def _attempt(self, folder: StagingPath, task: int) -> Generator[None, None, dict[int, StagingPath]]:
        """Write files in some partitions."""
        files: dict[int, StagingPath] = {}
        for count, partition in enumerate(self.chance.sample(PARTITIONS, self.chance.randrange(1, 3))):
            file = f"part-{task:05d}-{self.id}.c{count:03d}.snappy.parquet"
            number, _ = self.table.area.create((*folder, *partition, file), overwrite=False)
            yield
            if not self.table.area.finish(number, 1):
                raise JobError("hurt")
            files[number] = (*partition, file)
        return files

    def _commit_task(self, folder: StagingPath, task: int) -> None:
        if self.table.area.entry(folder) is not None:  # else it takes it that nothing was written
            target = (*self.root, "_temporary", "0", f"task_{self.id}_{task}")
            self._delete(target)
            if not self.table.area.rename(folder, target):
                raise JobError("hurt")

    def _commit(self) -> Iterator[None]:
        area, listed = self.table.area, (*self.root, "_temporary", "0")
        self._fail(0.1)
        if area.entry(listed) is None:
            raise JobError("hurt")
        for entry in area.entries(listed):
            if entry.name != "_temporary":
                self._merge((*listed, entry.name), self.root)
                yield
                self._fail(0.05)
        self._delete((*self.root, "_temporary"))
        self.moved_at = self.table.time
        if area.mark((*self.root, "_SUCCESS")):
            self.table.seal()
            self.table.sealed += 1
        for partition in sorted(self.partitions) if self.root else ():
            yield
            self._delete(partition)
            yield
            self._fail(0.05)
            if not area.rename((*self.root, *partition), partition):
                raise JobError("hurt")
        yield
        self._delete(self.own)
        if self.root:
            self.moved_at = self.table.time

    def _delete(self, place: StagingPath) -> None:
        self.table.delete(place, self.id)

    def _merge(self, source: StagingPath, target: StagingPath) -> None:
        area = self.table.area
        if area.entry(target) is None:
            if not area.rename(source, target):
                raise JobError("hurt")
        else:
            for entry in area.entries(source):
                self._merge((*source, entry.name), (*target, entry.name))

    def _fail(self, probability: float) -> None:
        if self.chance.random() < probability:
            raise JobError("failed")


class Spark:
    """Jobs on one table, so many at once."""

    def __init__(self, seed: int, jobs: int, at_once: int) -> None:
        self.chance = random.Random(seed)
        self.table = Table()
        self.jobs = [
            Job(self.table, number, self.chance.choice(["append", "overwrite", "partitions"]), self.chance)
            for number in range(jobs)
        ]
        #: Whether rows were owed when each job began.
        self.owed: list[bool] = []
        self._run(at_once)

    def _run(self, at_once: int) -> None:
        waiting, running = iter(self.jobs), dict[Job, Iterator[None]]()
        while True:
            while len(running) < at_once and (job := next(waiting, None)) is not None:
                self.owed.append(self._owes())
                running[job] = job.steps()
            if not running:
                break
            job = self.chance.choice([*running])
            if next(running[job], self) is self:
                del running[job]
            self._disturb()

    def _disturb(self) -> None:
        """An attempt that was forgotten begins a file, or tries to be committed."""
        if self.table.zombies and self.chance.random() < 0.3:
            folder, job = self.chance.choice(self.table.zombies)
            with contextlib.suppress(TidelockError):
                self.table.area.create((*folder, f"part-00099-{job}.c000.snappy.parquet"), overwrite=True)

    def _owes(self) -> bool:
        """Return whether a failed job has replaced rows, and no good job has replaced all rows since."""
        well = {job.id for job in self.jobs if job.ended == "well"}
        whole = max(
            (time for time, place, job in self.table.replaced if job in well and not place), default=0
        )
        return any(time > whole and job not in well for time, _, job in self.table.replaced)

    @property
    def committable(self) -> bool:
        """Return whether the transaction may be committed."""
        return self.table.area.unsealed() is None

    def expected(self) -> dict[int, StagingPath]:
        """Return the table that the jobs that have ended well make, each as a whole, in their order."""
        well = {job.id: job for job in self.jobs if job.ended == "well"}
        rows = [(0, *item) for item in Table().rows.items()]
        rows += [(job.moved_at, *item) for job in well.values() for item in job.written.items()]
        replaced = [(time, place) for time, place, job in self.table.replaced if job in well]
        return {
            number: row
            for at, number, row in rows
            if not any(time > at and is_below(row, place) for time, place in replaced)
        }


def check(spark: Spark) -> None:
    """No row is lost, or doubled, or of half a job, or replaced by nothing, where that could be committed."""
    if spark.committable and not spark.table.overtaken:
        assert spark.table.rows == spark.expected()


@settings(max_examples=300)
@given(st.integers(0, 1 << 32), st.integers(1, 5), st.integers(2, 3))
def test_jobs_that_run_into_each_other(seed: int, jobs: int, at_once: int) -> None:
    """Whichever of them end well, whichever are refused."""
    check(Spark(seed, jobs, at_once))


@settings(max_examples=200)
@given(st.integers(0, 1 << 32), st.integers(1, 5))
def test_jobs_one_after_the_other(seed: int, jobs: int) -> None:
    """None is hurt by what those before it have left; refused is one only where rows are owed."""
    spark = Spark(seed, jobs, 1)
    check(spark)
    for job, owed in zip(spark.jobs, spark.owed, strict=True):
        assert job.ended in ({"refused"} if owed and job.mode != "overwrite" else {"well", "failed"})


def test_the_jobs_meet_and_fail() -> None:
    """The properties above are about something."""
    for at_once in (1, 3):
        found = [Spark(seed, 4, at_once) for seed in range(200)]
        ends = Counter(job.ended for spark in found for job in spark.jobs)
        commits = [spark for spark in found if spark.committable]
        assert all(ends[end] > 30 for end in ("well", "failed", "refused")), ends
        assert sum(len(spark.table.rows) for spark in commits) > 100
        assert len(found) - len(commits) > 20
        assert sum(bool(spark.table.zombies) for spark in commits) > 20
