"""Jobs of the data source, which are settled by name, and any mixture of attempts, on a staging area."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.spark.hadoop_committer import (
    JOBS,
    SUCCESS,
    TEMPORARY,
    attempt,
    commit_job,
    name,
    task_folder,
    write,
)
from tidelock.errors import BadRequestError, UnsealedWriteError
from tidelock.replica_agent.transactions.staging_area import StagingArea
from tidelock.replica_agent.transactions.staging_paths import StagingPath, job_of_file


def test_a_job_that_is_settled_by_name() -> None:
    """The named files are accepted, in their partitions; all others are dropped, and later ones refused."""
    area = StagingArea()
    wanted = [(*attempt(0), "p=1", name(JOBS[0])), (*attempt(1), name(JOBS[0], 1))]
    numbers = [write(area, place) for place in wanted]
    lost = write(area, (*attempt(0, 1), "p=1", name(JOBS[0])))
    running, _ = area.create((*attempt(1, 1), name(JOBS[0], 1)), overwrite=False)
    assert sorted(area.settle(JOBS[0], wanted)) == [lost, running]
    assert not area.finish(running, 10)
    found = area.closing()
    assert [(item.number, item.place) for item in sorted(found, key=lambda item: item.number)] == [
        (numbers[0], ("p=1", name(JOBS[0]))),
        (numbers[1], (name(JOBS[0], 1),)),
    ]
    area.seal(found)
    assert area.unsealed() is None
    assert area.settle(JOBS[0], wanted) == ()  # asked for again, when the answer was lost
    with pytest.raises(BadRequestError, match="is over"):
        area.create((*attempt(2), name(JOBS[0], 2)), overwrite=False)
    second = (*attempt(3), name(JOBS[1]))
    write(area, second)
    assert area.settle(JOBS[1], [second]) == ()


def test_what_cannot_be_settled() -> None:
    """A file that is not there, not whole, of another job, or twice: nothing has changed by that."""
    area = StagingArea()
    whole = (*attempt(0), name(JOBS[0]))
    twin = (*attempt(1), name(JOBS[0]))
    write(area, whole)
    write(area, twin)
    half = (*attempt(2), name(JOBS[0], 1))
    number, _ = area.create(half, overwrite=False)
    for places in ([half], [whole, (*attempt(9), name(JOBS[0]))], [(name(JOBS[0]),)]):
        with pytest.raises(UnsealedWriteError, match="does not exist, or is incomplete"):
            area.settle(JOBS[0], places)
    with pytest.raises(BadRequestError, match="two files"):
        area.settle(JOBS[0], [whole, twin])
    with pytest.raises(BadRequestError, match="is still writing"):
        area.settle(JOBS[1], [])
    assert area.finish(number, 10)
    area.settle(JOBS[0], [whole, half])
    assert len(area.closing()) == 2


def test_a_job_without_rows_is_settled() -> None:
    """It leaves nothing, and delays no other job; its late attempts are refused nevertheless."""
    area = StagingArea()
    assert area.settle(JOBS[0], []) == ()
    area.seal(area.closing())
    assert area.unsealed() is None
    with pytest.raises(BadRequestError, match="is over"):
        area.create((*attempt(0), name(JOBS[0])), overwrite=False)


def test_a_job_that_was_ended_is_not_settled() -> None:
    """Its files are gone: that it has no rows would be a wrong answer."""
    area = StagingArea()
    write(area, (*attempt(0), name(JOBS[0])))
    area.delete(TEMPORARY, recursive=True)
    with pytest.raises(UnsealedWriteError, match="was ended before its files were named"):
        area.settle(JOBS[0], [(*attempt(0), name(JOBS[0]))])
    with pytest.raises(UnsealedWriteError, match="was ended before its files were named"):
        area.settle(JOBS[0], [])


@dataclass
class Driver:
    """Spark jobs one after the other; attempts are retried, duplicated, aborted, or hang on."""

    random: random.Random
    area: StagingArea = field(default_factory=StagingArea)
    expected: set[int] = field(default_factory=set)
    parts: set[int] = field(default_factory=set)
    failed: int = 0
    #: Attempts that go on although their job does not: (place, number being written).
    zombies: list[tuple[StagingPath, int]] = field(default_factory=list)

    def run(self, job: str) -> None:
        """One job; its driver may fail at any point."""
        self.area.make_folder((*TEMPORARY, "0"))
        tasks = self.random.randrange(1, 4)
        committed: dict[int, set[int]] = {}
        fails = self.random.random() < 0.3
        for number in range(tasks * 3):
            task = self.random.randrange(tasks)
            self.attempt(job, task, number, committed)
            self.disturb(job)
        done = set(committed) == set(range(tasks))
        if fails or not done:
            self.failed += 1
            self.area.delete(TEMPORARY, recursive=True)
        else:
            commit_job(self.area, tasks)
            self.disturb(job)
            assert self.area.mark(SUCCESS)
            self.expected |= {number for numbers in committed.values() for number in numbers}
            self.parts |= {item.number for item in self.area.closing()}
            self.area.seal(self.area.closing())

    def attempt(self, job: str, task: int, number: int, committed: dict[int, set[int]]) -> None:
        """One attempt: it writes, then is committed, aborted, or forgotten in the middle."""
        folder = attempt(task, number)
        written: set[int] = set()
        for file in range(self.random.randrange(1, 3)):
            place = (*folder, f"k={self.random.randrange(2)}", name(job, task, file))
            found, dropped = self.area.create(place, overwrite=True)
            written -= set(dropped)
            if self.random.random() < 0.2:
                self.zombies.append((place, found))
                return
            assert self.area.finish(found, 1)
            written.add(found)
        match self.random.randrange(3):
            case 0:
                self.area.delete(folder, recursive=True)
            case 1:
                self.area.delete(task_folder(task), recursive=True)
                if self.area.rename(folder, task_folder(task)):
                    committed[task] = written

    def disturb(self, job: str) -> None:
        """Attempts that were forgotten write on, begin other files, abort, or try to be committed."""
        for place, number in self.random.sample(self.zombies, min(2, len(self.zombies))):
            with contextlib.suppress(BadRequestError):
                match self.random.randrange(4):
                    case 0:
                        self.area.finish(number, 1)
                    case 1:
                        other = name(job_of_file(place) or job, 9, 9)
                        self.area.create((*place[:-1], other), overwrite=True)
                    case 2:
                        self.area.delete(place[:4], recursive=True)
                    case _:
                        self.area.rename(place[:4], ("k=0",))


@settings(max_examples=100)
@given(st.integers(0, 1 << 32), st.integers(1, 4))
def test_exactly_what_sealed_jobs_have_committed_enters(seed: int, jobs: int) -> None:
    """Whatever retries, aborts, duplicates and zombies do before, between and after."""
    driver = Driver(random.Random(seed))
    for job in JOBS[:jobs]:
        driver.run(job)
        driver.disturb(job)
    assert driver.parts == driver.expected
    assert {entry.name for entry in driver.area.entries(())} <= {"_temporary"}


def test_the_driver_commits_and_fails() -> None:
    """The property above is about something: there are jobs that are sealed, jobs that fail, and zombies."""
    drivers = [Driver(random.Random(seed)) for seed in range(30)]
    for driver in drivers:
        for job in JOBS[:4]:
            driver.run(job)
    assert sum(len(driver.parts) for driver in drivers) > 30
    assert sum(driver.failed for driver in drivers) > 10
    assert sum(len(driver.zombies) for driver in drivers) > 30
