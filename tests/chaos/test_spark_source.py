"""The data source `tidelock` over executors, drivers and homes that fail (issue 5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import psutil
import pytest

from tests.support import spark_process
from tests.support.cluster import ClusterFactory
from tests.support.spark_lab import BASE, HOME, IDS, TASKS, SparkLab, spark_laboratory
from tests.support.spark_process import SparkJobError, require_over

# A session may take minutes to start on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

BEFORE, AFTER = "csnlog.commit.before", "csnlog.commit.after"
#: So that a driver that is dead is found dead soon.
LEASE_S: Final = 20.0
#: Rows of one partition.
ONE_TOWN: Final = range(0, 4 * IDS.stop, 4)


@pytest.fixture(scope="module")
def lab(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkLab]:
    """Executors of a standalone cluster, and a home that pauses or dies at its commit."""
    faults = {HOME: {BEFORE: "crash", AFTER: "pause"}}
    with spark_laboratory(
        module_cluster, tmp_path_factory.mktemp("lab"), standalone=True, faults=faults
    ) as lab:
        yield lab


@pytest.mark.parametrize(
    ("mode", "ids", "kept"),
    [
        ("append", IDS, BASE),
        ("overwrite", IDS, ()),
        ("overwrite_partitions", ONE_TOWN, [number for number in BASE if number % 4]),
    ],
)
def test_three_of_ten_attempts_fail(lab: SparkLab, mode: str, ids: range, kept: range) -> None:
    """Whatever raises or is killed leaves nothing; a repetition adds nothing."""
    with lab.load("source", failing_percent=30) as load:
        load.send(ids=ids, mode=mode)
        csn = lab.spark.receive()
        killed, raised = len(load.met("killed")), len(load.met("raised"))
        assert min(killed, raised) > 0
        assert killed + raised >= 0.3 * (TASKS + killed + raised)
        load.require_rows(csn, [*kept, *ids])
        assert load.repeat(ids=ids, mode=mode) == csn
        load.require_rows(None, [*kept, *ids])


def test_slow_attempts_run_twice(lab: SparkLab) -> None:
    """Speculation: of two attempts of a task one enters."""
    with lab.load("source", slow_s=60.0) as load:
        load.send()
        csn = lab.spark.receive()
        assert load.met("slow")
        assert load.met("twice")
        load.require_once(csn)


def test_an_executor_dies(lab: SparkLab) -> None:
    """Its tasks are run by another one."""
    with lab.load("source", held=True) as load:
        with load.held(attempts=2):
            victim = lab.executors()[0]
            victim.kill()
            psutil.wait_procs([victim])
        load.require_once(lab.spark.receive())


def test_attempts_that_write_on_behind_the_commit(lab: SparkLab) -> None:
    """An executor that was gone for a while uploads its files when its tasks were done by others."""
    with lab.load("source", held=True) as load:
        with load.held(attempts=2):
            frozen = lab.executors()[0]
            spark_process.freeze(frozen)
        try:
            csn = lab.spark.receive()
        finally:
            spark_process.thaw(frozen)
        require_over(frozen)
        load.require_once(csn)


def test_attempts_that_write_on_behind_the_rollback(lab: SparkLab) -> None:
    """As above, when the job has failed and its transaction was rolled back."""
    with lab.load("source", held=True, broken=5) as load:
        with load.held(attempts=2):
            frozen = lab.executors()[0]
            spark_process.freeze(frozen)
        try:
            with pytest.raises(SparkJobError, match="task 5 cannot succeed"):
                lab.spark.receive()
        finally:
            spark_process.thaw(frozen)
        require_over(frozen)
        load.require_nothing()


def test_a_driver_dies_while_its_tasks_write(lab: SparkLab) -> None:
    """Nobody is left who would commit; what its tasks had sent goes with the lease."""
    with lab.load("source", held=True) as load:
        with load.held(attempts=2, lease=LEASE_S):
            lab.spark.kill()
        load.require_nothing()


def test_a_driver_dies_between_commit_and_answer(lab: SparkLab) -> None:
    """Committed: the next driver finds its label taken, and adds nothing."""
    with lab.load("source") as load:
        with lab.gates.open(HOME, AFTER):
            load.send(lease=LEASE_S)
            lab.gates.await_hit(HOME, AFTER)
            lab.spark.kill()
        load.require_once(load.repeat())


def test_the_home_dies_while_tasks_write(lab: SparkLab) -> None:
    """The job fails with one clear error; with the same label it is carried out by another home."""
    with lab.load("source", held=True) as load:
        with load.held():
            lab.cluster.kill(HOME)
        with pytest.raises(SparkJobError, match=r"home|rolled back|answer"):
            lab.spark.receive()
        load.require_once(load.repeat())


def test_the_home_dies_before_the_record(lab: SparkLab) -> None:
    """Not committed, and nobody says otherwise; the repetition is another transaction."""
    with lab.load("source") as load:
        with lab.gates.open(HOME, BEFORE):
            load.send()
            with pytest.raises(SparkJobError, match=r"home|rolled back|answer"):
                lab.spark.receive()
        load.require_nothing()


def test_another_replica_dies_while_tasks_write(lab: SparkLab) -> None:
    """The load goes on without it."""
    with lab.load("source", held=True) as load:
        with load.held():
            lab.cluster.kill("r2")
        load.require_once(lab.spark.receive())
