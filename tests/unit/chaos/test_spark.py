"""Tests of the pool of Spark sessions, of what its jobs write down, and of the fault that kills drivers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest import mock

import pytest

from chaos.clients.session import Found
from chaos.faults.processes.driver_killed import DriverKilled
from chaos.judging import presence
from chaos.record.history import History, ended, lines
from chaos.record.journal import Journal, load
from chaos.spark import pool as pool_module
from chaos.spark.bearing import UnbearableError, require_bearable
from chaos.spark.changing import change
from chaos.spark.driver import Driver
from chaos.spark.job import SparkEndedError, SparkJob, SparkJobError
from chaos.spark.pool import Pool
from chaos.spark.reading import Question, reading
from chaos.spark.writing import LabelledJobs
from chaos.workloads import ALL
from chaos.workloads.bank import Bank
from chaos.workloads.derived import Derived
from chaos.workloads.labels import Labels
from chaos.workloads.landing import Landing
from chaos.workloads.list_append import ListAppend
from chaos.workloads.long_fork import LongFork
from chaos.workloads.offsets import Offsets
from chaos.workloads.row_checks import RowChecks
from chaos.workloads.set_full import SetFull
from chaos.workloads.streams import Streams
from chaos.workloads.table_lives import TableLives
from chaos.workloads.workload import Workload
from chaos.world import World
from tests.support.waiting import eventually


class _Driver:
    """A session whose calls end as they are told, one after the other; then well."""

    pid = 4711

    def __init__(self, number: int = 1, *answers: object) -> None:
        self.number, self._answers = number, list(answers)
        self.alive, self.closed = True, False
        self.job: str | None = None
        self.urls: list[str] | None = None
        self.calls: list[str] = []
        self.asked: list[dict[str, Any]] = []

    def call(self, job: str, **given: Any) -> Any:
        self.calls.append(job)
        self.asked.append(given)
        if not self.alive:
            raise SparkEndedError("driver 1: the process has ended")
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            self.alive = not isinstance(answer, SparkEndedError)
            raise answer
        return answer

    def kill(self) -> None:
        self.alive = False

    def close(self) -> None:
        self.alive, self.closed = False, True


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a run without a cluster."""
    values = dict.fromkeys(World.__dataclass_fields__, cast("Any", 0))
    names = {
        "replicas": ["r1"],
        "urls": [],
        "secret": None,
        "spark_master": None,
        "driver_host": "",
        "connect": mock.MagicMock(),
    }
    with Journal(tmp_path / "journal.jsonl") as journal:
        values |= {"cluster": SimpleNamespace(**names), "folder": tmp_path, "journal": journal, "drivers": {}}
        values["stopping"] = SimpleNamespace(wait=lambda _: False, is_set=lambda: False)
        yield World(**values)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """Return a history."""
    with closing(History(tmp_path / "h.jsonl")) as of:
        yield of


def _told(of: History) -> list[dict[str, Any]]:
    return list(ended(lines(of.path)))


# -- what its jobs write down -------------------------------------------------------------------------------


def _reads(world: World, history: History) -> list[SparkJob]:
    of = cast("Any", SimpleNamespace(name="pairs", world=world, history=history))
    question = Question(
        [["r", "a", None]], {"a": "select n from a"}, lambda rows: Found([["r", "a", rows["a"]]])
    )
    return reading(of, lambda: question)


_READS: Final[list[tuple[type[Workload], dict[str, Any], dict[str, Any]]]] = [
    (
        Bank,
        {"bank_a": [[0, 40, 7]], "bank_b": [[3, 60, 8], [3, 1, 9]]},
        {"bank_a/0": [7], "bank_b/3": [8, 9]},
    ),
    (
        ListAppend,
        {"la0": [[0, 5], [0, 2]], "la1": [], "la2": [[0, "3,1"]], "la3": []},
        {"la0/0": [2, 5], "la2/0": [3, 1]},
    ),
    (LongFork, {"fork_0": [[0, 2]], "fork_1": [], "fork_2": [[0, 1]]}, {"fork/0.0": [2], "fork/0.2": [1]}),
    (SetFull, {"set_full": [[3], [1]]}, {"set_full/0": [1, 3]}),
    (Landing, {"landed": [[2], [2]]}, {"landed/0": [2, 2]}),
    (
        Derived,
        {
            "derived_source": [[1, 3, 2]],
            "derived_totals": [[1, 3, 2]],
            "derived_counts": [[0, 1, 2]],
            "inserts": [[0, 1, 0]],
        },
        {"derived_source": [[1, 3, 2]], "derived_totals": [[1, 3, 2]], "derived_counts": [[0, 1, 2]]},
    ),
    (Offsets, {"offsets": [[0, 1, 2, 2]]}, {"offsets": [0, 1, 2, 2]}),
    (RowChecks, {"checked": [[1, 2, 3, 4]]}, {"checked": [False, [], [[1, 2, 3, 4]]]}),
    (
        TableLives,
        {"lives_a": ["7", ["g", "n", "d5"], [[7, 2, 5], [7, 1, 5]]], "lives_b": ["8", ["g", "n", "d6"], []]},
        {"tables": [["lives_a", 7, [[7, 1], [7, 2]], [["d5", [5]]]], ["lives_b", 8, [], [["d6", []]]]]},
    ),
    (Labels, {"labels_jobs": [[0, 4]], "labels_batches": []}, {"labels_jobs/0": [4], "labels_batches/0": []}),
]


@pytest.mark.parametrize(("kind", "rows", "told"), _READS, ids=[kind.name for kind, *_ in _READS])
def test_a_read_by_spark_is_told_as_clients_tell_theirs(
    world: World, kind: type[Workload], rows: dict[str, Any], told: dict[str, Any]
) -> None:
    """The judge of a workload reads both in one way."""
    with closing(kind(world)) as load:
        if kind is not Bank:  # it opens its accounts by a transaction
            load.prepare(mock.MagicMock())
        job = next(job for job in load.spark_jobs() if job.name.endswith("read at one replica"))
        job.run(cast("Driver", _Driver(1, {"csn": 7, "rows": rows, "replica": "r1"})))
        [line] = _told(load.history)
    assert (line["type"], line["snapshot"]) == ("ok", 7)
    found = {key: there for _, key, there in line["value"]}
    assert {key: found[key] for key in told} == told
    assert not any(there for key, there in found.items() if key not in told)
    assert line.get("total", 101) == 101
    assert line.get("inserts", 1) == 1


def test_every_workload_is_read_by_spark() -> None:
    """Users read by Spark more than by anything else, so no invariant is left to other readers."""
    assert [one.name for one in ALL if one.spark_jobs is Workload.spark_jobs] == []


def test_reads_by_each_way(world: World, history: History) -> None:
    """A read tells its CSN and how it was read; one that fails is told too, and raised."""
    any_, pinned, failover = _reads(world, history)
    for job, replica in ((any_, None), (pinned, "r1"), (failover, "r1")):
        job.run(cast("Driver", _Driver(1, {"csn": 7, "rows": {"a": [[1]]}, "replica": replica})))
    for error in (SparkJobError("Py4JJavaError: no connection"), SparkEndedError("x")):
        with pytest.raises(type(error)):
            any_.run(cast("Driver", _Driver(1, error)))
    told = _told(history)
    assert [line["type"] for line in told] == ["ok", "ok", "ok", "fail", "fail"]
    assert [line["replica"] for line in told[:3]] == [
        "Spark at any with failover",
        "Spark at r1",
        "Spark at r1 with failover",
    ]
    assert {line["snapshot"] for line in told[:3]} == {7}
    assert [call["end"] for call in load(world.journal.path)] == ["ok", "ok", "ok", "fail", "fail"]


def test_a_labelled_job_is_run_until_it_is_known_to_be_done(world: World, history: History) -> None:
    """A driver that dies leaves its job to the next one: one operation, which counts once."""
    jobs = LabelledJobs(world, "labels", "t", history)
    with pytest.raises(SparkEndedError):
        jobs.run(cast("Driver", _Driver(1, SparkEndedError("x"))))
    [open_] = _told(history)
    assert open_["type"] == "info"
    jobs.run(cast("Driver", _Driver(2, 9)))
    [done] = _told(history)
    assert (done["type"], done["csn"], done["value"]) == ("ok", 9, [["add", "t", 1]])
    jobs.finish(cast("Driver", _Driver(3)))  # nothing is left
    assert presence.judged("labels", _told(history)) == []


def test_a_change_by_spark_is_told_with_its_end(world: World, history: History) -> None:
    """The end of a job that has failed is not known; a failure that no user should see is another error."""
    moves = cast("Workload", SimpleNamespace(name="moves", world=world, history=history))
    value = [["move", "here to there", "n % 2 = 0"]]
    for answer in (9, None, SparkJobError("SerializationConflictError: locked"), SparkEndedError("x")):
        driver = cast("Driver", _Driver(1, answer))
        with pytest.raises(type(answer)) if isinstance(answer, Exception) else nullcontext():
            change(moves, driver, value, "move", where="n % 2 = 0")
    with pytest.raises(UnbearableError, match="rows were lost"):
        change(
            moves, cast("Driver", _Driver(1, SparkJobError("CorruptError: rows were lost"))), value, "move"
        )
    told = _told(history)
    assert [(line["type"], line.get("csn")) for line in told] == [
        ("ok", 9), ("ok", None), ("info", None), ("info", None), ("info", None),
    ]  # fmt: skip
    assert {line["f"] for line in told} == {"move"}
    assert [line["end"] for line in load(world.journal.path)] == ["ok", "ok", "fail", "fail", "fail"]


def test_the_query_goes_on_from_one_checkpoint_in_each_session(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions work in folders of their own; the run may have been given a relative path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "histories").mkdir(parents=True)
    streams = Streams(replace(world, folder=Path("run")))
    [query] = streams.last_spark_jobs()
    first, second = _Driver(1, 3), _Driver(2, 3)
    with closing(streams.history):
        streams.prepare(mock.MagicMock())
        for driver in (first, second):
            query.run(cast("Driver", driver))
    assert first.asked == second.asked
    assert first.asked[0]["checkpoint"] == str(tmp_path / "run" / "checkpoint")


_TRACEBACK = """AnalysisException: [PYTHON_DATA_SOURCE_ERROR] Traceback (most recent call last):
    except LabelExistsError:
tidelock.errors.UnavailableError: no replica could answer"""


@pytest.mark.parametrize(
    ("message", "bearable"),
    [
        ("UnavailableError: no replica answers", True),
        ("PythonException: tidelock.errors.TokenFinishedError: lease", True),
        ("Py4JJavaError: java.net.ConnectException: Connection refused", True),
        ("AnalysisException: [PYTHON_DATA_SOURCE_ERROR]: tidelock.errors.StandbyError: suspended", True),
        ("AnalysisException: [PYTHON_DATA_SOURCE_ERROR]: tidelock.errors.UnknownTableError: t", False),
        ("CorruptError: bytes of a part contradict its checksum", False),
        ("Py4JJavaError: tidelock.errors.SchemaMismatchError: column n", False),
        ("AnalysisException: [TABLE_OR_VIEW_NOT_FOUND]", False),
        (_TRACEBACK, True),
        ("PythonException: tidelock.errors.RefusedError: TokenFinishedError: it has ended", True),
        ("PythonException: tidelock.errors.RefusedError: CorruptError: wrong bytes", False),
    ],
)
def test_what_users_of_spark_have_to_bear(message: str, bearable: bool) -> None:
    """Retriable errors and those of a node that is away are borne; all others end the run."""
    require_bearable(SparkEndedError(message))
    if bearable:
        require_bearable(SparkJobError(message))
    else:
        with pytest.raises(UnbearableError):
            require_bearable(SparkJobError(message))


# -- the pool -----------------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[_Driver]:
    """Return the drivers that a pool starts, in their order."""
    drivers: list[_Driver] = []

    def start(number: int, *_: object, **__: object) -> _Driver:
        drivers.append(_Driver(number))
        return drivers[-1]

    monkeypatch.setattr(pool_module, "Driver", start)
    return drivers


def _pool(world: World, run: Callable[[Any], None], sessions: int = 1) -> Pool:
    return Pool(world, [SparkJob("a job", run)], sessions=sessions, pause_s=0.001)


def test_a_session_that_dies_is_started_again(world: World, started: list[_Driver]) -> None:
    """Jobs that fail are passed over, and a driver that ends is replaced."""
    runs = 0

    def run(driver: _Driver) -> None:
        nonlocal runs
        runs += 1
        if runs == 2:
            raise SparkJobError("x")
        if runs == 3:
            driver.kill()
            raise SparkEndedError("x")

    pool = _pool(world, run)
    assert not pool.complete
    pool.start()
    eventually(lambda: pool.complete, what="the first session")
    eventually(lambda: len(started) == 2 and pool.done > 3, what="jobs of the second session")
    assert world.drivers.keys() == {"s1"}
    pool.stop()
    assert pool.errors == []
    assert all(driver.closed for driver in started)
    assert world.drivers == {}


def test_a_session_joins_the_replicas_that_are_there_now(world: World, started: list[_Driver]) -> None:
    """A session that nobody kills outlives all replicas that it began with."""
    pool = _pool(world, lambda _: None)
    cast("Any", world.cluster).urls = ["http://r1"]
    job = SparkJob("a job", lambda _: None)
    pool.finish([job])
    pool.finish([job])
    cast("Any", world.cluster).urls = ["http://r2"]
    pool.finish([job])
    pool.stop()
    [driver] = started
    assert [asked["urls"] for asked in driver.asked] == [["http://r1"], ["http://r2"]]


def test_what_need_not_be_borne_ends_a_session(world: World, started: list[_Driver]) -> None:
    """The run has failed then, and its runner is told."""

    def run(_: _Driver) -> None:
        raise UnbearableError("x")

    pool = _pool(world, run, sessions=2)
    pool.start()
    eventually(lambda: len(pool.errors) == 2, what="the ends of both sessions")
    pool.stop()
    assert len(started) == 2


@pytest.mark.usefixtures("started")
def test_last_jobs_must_succeed(world: World) -> None:
    """One failure is borne; one that comes again and again is not."""
    pool = _pool(world, lambda _: None)
    failures = iter([SparkJobError("x")])

    def once(_: object) -> None:
        for failure in failures:
            raise failure

    def never(_: object) -> None:
        raise SparkJobError("x")

    pool.finish([SparkJob("once", once)])
    with pytest.raises(SparkJobError, match="when all is well"):
        pool.finish([SparkJob("never", never)])
    pool.stop()


# -- the fault ----------------------------------------------------------------------------------------------


def test_a_driver_is_killed_in_a_job(world: World) -> None:
    """An idle driver is let alone; the proof names the job, and says nothing while the process lives."""
    idle, busy = _Driver(1), _Driver(2)
    busy.job = "streams, the query"
    world.drivers.update({"s1": cast("Driver", idle), "s2": cast("Driver", busy)})
    with DriverKilled().inject(world, [], random.Random(1)) as proof:
        assert proof.seen() == "driver 2 (pid 4711) has ended in the job 'streams, the query'"
        assert idle.alive
        busy.alive = True
        assert proof.seen() is None


def test_the_fault_ends_when_the_session_has_a_successor(world: World) -> None:
    """Another one may not die meanwhile: jobs run at any time."""
    killed, successor = _Driver(1), _Driver(1)
    killed.job = "streams, the query"
    world.drivers["s1"] = cast("Driver", killed)
    begins = threading.Timer(0.3, lambda: world.drivers.update({"s1": cast("Driver", successor)}))
    with DriverKilled().inject(world, [], random.Random(1)):
        begins.start()
    assert list(world.drivers.values()) == [cast("Driver", successor)]
    begins.join()
