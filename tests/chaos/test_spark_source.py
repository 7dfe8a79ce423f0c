"""The data source `tidelock` over drivers and homes that fail (issue 5). Its tasks: test_spark_tasks.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.clusters.cluster import ClusterFactory
from tests.support.spark.lab import HOME, SparkLab, spark_laboratory
from tests.support.spark.process import SparkJobError

# A session may take minutes to start on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

BEFORE, AFTER = "csnlog.commit.before", "csnlog.commit.after"
#: Lease of the driver's transaction, in seconds: short, so that its death is noticed soon.
LEASE_S: Final = 20.0


@pytest.fixture(scope="module")
def lab(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkLab]:
    """Executors of a standalone cluster, and a home that pauses or dies at its commit."""
    faults = {HOME: {BEFORE: "crash", AFTER: "pause"}}
    with spark_laboratory(
        module_cluster, tmp_path_factory.mktemp("lab"), standalone=True, faults=faults
    ) as lab:
        yield lab


@pytest.mark.scenario("S63")
def test_a_driver_dies_while_its_tasks_write(lab: SparkLab) -> None:
    """No process is left that could commit; the rows that its tasks had sent end with the lease."""
    with lab.load("source", held=True) as load:
        with load.held(attempts=2, lease=LEASE_S):
            lab.spark.kill()
        load.require_nothing()


def test_a_driver_dies_between_commit_and_answer(lab: SparkLab) -> None:
    """Committed: the next driver finds its label taken, and adds no rows."""
    with lab.load("source") as load:
        with lab.gates.open(HOME, AFTER):
            load.send(lease=LEASE_S)
            lab.gates.await_hit(HOME, AFTER)
            lab.spark.kill()
        load.require_once(load.repeat())


def test_the_home_dies_while_tasks_write(lab: SparkLab) -> None:
    """The job fails with one clear error; with the same label another home runs it."""
    with lab.load("source", held=True) as load:
        with load.held():
            lab.cluster.kill(HOME)
        with pytest.raises(SparkJobError, match=r"home|rolled back|answer"):
            lab.spark.receive()
        load.require_once(load.repeat())


def test_the_home_dies_before_the_record(lab: SparkLab) -> None:
    """Not committed, and no replica says otherwise; the repetition is another transaction."""
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
