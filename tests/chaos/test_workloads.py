"""Every workload of the chaos runner on a cluster that is well: it does something, and nothing is wrong."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from chaos import workloads
from chaos.faults.processes.driver_killed import DriverKilled
from chaos.record.journal import Journal, load
from chaos.record.violation import Violation
from chaos.spark.jobs import NICENESS
from chaos.spark.pool import Pool
from chaos.workloads.workload import Client, Workload
from chaos.world import World
from tests.chaos import outside_lists
from tests.support.faults import ability
from tests.support.waiting import eventually
from tidelock.testing import Cluster

#: Acknowledged writes and answered reads of each workload, at least.
_WRITES, _READS = 3, 4
_TIMEOUT_S: Final = 240.0
#: The kernel knows no process that is nicer.
_NICEST: Final = 19
#: Jobs of Spark that are done a second time.
_AGAIN: Final = 4


class _Run:
    """Workloads on a cluster."""

    def __init__(self, world: World, loads: Sequence[type[Workload]], pace: float) -> None:
        self.world = world
        self.workloads = [load(world, pace=pace) for load in loads]
        self.errors: list[BaseException] = []
        self.violations: dict[str, Sequence[Violation]] = {}

    def calls(self) -> Counter[tuple[str, str]]:
        """Count the calls that have ended well, by workload and kind."""
        lines = (line for line in load(self.world.journal.path) if line["what"] == "call")
        return Counter((line["workload"], line["f"]) for line in lines if line["end"] == "ok")

    def enough(self) -> bool:
        """Whether each workload has written and read."""
        calls = self.calls()
        wrote = {one.name: calls[one.name, "write"] + calls[one.name, "land"] for one in self.workloads}
        return bool(self.errors) or all(
            wrote[one.name] >= _WRITES and calls[one.name, "read"] >= _READS for one in self.workloads
        )

    @contextmanager
    def working(self) -> Iterator[None]:
        """Let all clients work inside the block."""
        clients = [client for one in self.workloads for client in one.clients()]
        threads = [threading.Thread(target=self._work, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.world.stopping.set()
            for thread in threads:
                thread.join()
        if self.errors:
            raise self.errors[0]

    def _work(self, client: Client) -> None:
        try:
            while not self.world.stopping.is_set():
                client.step()
        except BaseException as error:
            self.errors.append(error)
        finally:
            client.close()

    def judge(self) -> None:
        """Judge all workloads."""
        with self.world.cluster.connect() as db:
            for one in self.workloads:
                with closing(one):
                    self.violations[one.name] = one.judge(db)


@contextmanager
def _run(folder: Path, loads: Sequence[type[Workload]], *, pace: float, **options: Any) -> Iterator[_Run]:
    settings = {name: value for one in loads for name, value in one.settings.items()}
    with (
        Cluster.processes(folder / "cluster", settings=settings, **options) as cluster,
        Journal(folder / "journal.jsonl") as journal,
    ):
        run = _Run(World(cluster, folder, journal, 7, 2, stall_max_s=60.0), loads, pace)
        with ExitStack() as histories:
            for one in run.workloads:
                histories.callback(one.close)
            with cluster.connect() as db:
                for one in run.workloads:
                    one.prepare(db)
            yield run


_WITHOUT_SPARK: Final = [one for one in workloads.ALL if not one.spark]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Run]:
    """Return a run of all workloads that need no Spark."""
    with _run(tmp_path_factory.mktemp("workloads"), _WITHOUT_SPARK, pace=0.5) as run:
        with run.working():
            eventually(run.enough, what="calls of each workload", timeout_s=_TIMEOUT_S)
        run.judge()
        yield run


@pytest.mark.parametrize("name", [one.name for one in _WITHOUT_SPARK])
def test_a_workload_is_clean_where_all_is_well(done: _Run, name: str) -> None:
    """It has written and read, and its judge finds nothing."""
    assert done.violations[name] == []
    calls = done.calls()
    assert calls[name, "write"] + calls[name, "land"] >= _WRITES
    assert calls[name, "read"] >= _READS


@pytest.mark.slow
def test_the_lists_are_clean_for_an_outside_checker(done: _Run) -> None:
    """The program that others have written judges the same history, where it is installed."""
    ability.require(outside_lists.lack())
    outside_lists.require_valid(done.world.history("list_append.ordered"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_spark_reads_and_writes_beside_the_clients(tmp_path: Path) -> None:
    """Jobs of each workload succeed, a driver is killed in the middle of one, and nothing is wrong."""
    with _run(tmp_path, workloads.ALL, pace=3.0) as run:
        jobs = [job for one in run.workloads for job in one.spark_jobs()]
        pool = Pool(run.world, jobs, sessions=2, pause_s=0.1)
        try:
            with run.working():
                pool.start()
                eventually(lambda: pool.complete, what="sessions of Spark", timeout_s=300)
                lowered = min(_NICEST, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
                for driver in run.world.drivers.values():
                    assert os.getpriority(os.PRIO_PROCESS, driver.pid) == lowered
                # In the middle of the list, which is done once, and some of it again behind the kill.
                for goal, kills in ((len(jobs) // 2, True), (len(jobs) + _AGAIN, False)):
                    eventually(
                        lambda goal=goal: pool.done >= goal or bool(pool.errors),  # type: ignore[misc]
                        what=f"{goal} jobs of Spark",
                        timeout_s=900,
                    )
                    assert pool.errors == []
                    if kills:
                        with DriverKilled().inject(run.world, [], run.world.chosen("a driver")) as proof:
                            eventually(proof.seen, what="the end of a driver")
                # On a busy machine a query of a stream takes as long as many other jobs.
                eventually(
                    lambda: run.calls()["streams", "stream"] >= 2 or bool(pool.errors),
                    what="two queries of streams",
                    timeout_s=900,
                )
            pool.finish([job for one in run.workloads for job in one.last_spark_jobs()])
        finally:
            pool.stop()
        run.judge()
        assert {name: found for name, found in run.violations.items() if found} == {}
        calls = run.calls()
        assert calls["streams", "stream"] >= 2
        jobs_told = [line for line in load(run.world.journal.path) if "spark" in line and "end" in line]
        spark = [line for line in jobs_told if line["end"] == "ok"]
        failed = [line for line in jobs_told if line["end"] != "ok"]
        read = {line["workload"] for line in spark if line["f"] == "read"}
        assert read == {one.name for one in workloads.ALL}, failed
        assert {line["f"] for line in spark} == {"read", "write", "stream"}
