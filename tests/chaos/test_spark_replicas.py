"""Replicas that die or freeze while Spark writes into a transaction, in each of its phases (issue 5)."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.clusters.cluster import ClusterFactory
from tests.support.spark.lab import HOME, OTHER, SparkLab, spark_laboratory
from tests.support.spark.process import SparkJobError

# A session may take minutes to start on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

BEFORE, AFTER = "csnlog.commit.before", "csnlog.commit.after"
ACCEPT: Final = "replication.accept.before"
FAULTS: Final = {HOME: {BEFORE: "crash", AFTER: "crash"}, OTHER: {ACCEPT: "crash"}}
#: Seconds of a freeze: longer than the ZooKeeper session timeout.
FROZEN_S: Final = 9.0
#: The words of an error that the driver gets when the home is gone.
GONE: Final = r"home|rolled back|answer"


@pytest.fixture(scope="module")
def lab(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkLab]:
    """Two executors, and a home and another replica that can be killed at the commit."""
    with spark_laboratory(module_cluster, tmp_path_factory.mktemp("lab"), faults=FAULTS) as lab:
        yield lab


def test_the_home_dies_while_tasks_upload(lab: SparkLab) -> None:
    """The load fails with one clear error; with the same label another home runs it meanwhile."""
    with lab.load(held=True) as load:
        with load.held():
            lab.cluster.kill(HOME)
        with pytest.raises(SparkJobError, match=GONE) as told:
            lab.spark.receive()
        assert len(str(told.value)) < 1000
        load.require_once(load.repeat())


def test_another_replica_dies_while_tasks_upload(lab: SparkLab) -> None:
    """The load goes on without it."""
    with lab.load(held=True) as load:
        with load.held():
            lab.cluster.kill(OTHER)
        load.require_once(lab.spark.receive())


def test_the_home_dies_between_job_and_commit(lab: SparkLab) -> None:
    """The sealed files are deleted with the transaction; the error of the commit says so."""
    with lab.load() as load:
        load.begin()
        lab.cluster.kill(HOME)
        with pytest.raises(SparkJobError, match=GONE):
            lab.spark.call("commit")
        load.require_once(load.repeat())


def test_another_replica_dies_between_job_and_commit(lab: SparkLab) -> None:
    """Two replicas are enough for the commit."""
    with lab.load() as load:
        load.begin()
        lab.cluster.kill(OTHER)
        load.require_once(lab.spark.call("commit"))


def test_the_home_dies_before_the_record(lab: SparkLab) -> None:
    """Not committed, and no replica says otherwise; the repetition is another transaction."""
    with lab.load() as load:
        load.begin()
        with lab.gates.open(HOME, BEFORE), pytest.raises(SparkJobError, match=GONE):
            lab.spark.call("commit")
        load.require_nothing()


def test_the_home_dies_behind_the_record(lab: SparkLab) -> None:
    """Committed: the driver gets the outcome from the other replicas."""
    with lab.load() as load:
        load.begin()
        with lab.gates.open(HOME, AFTER):
            csn = lab.spark.call("commit")
        load.require_once(csn)


def test_another_replica_dies_when_it_is_to_vouch(lab: SparkLab) -> None:
    """The commit takes its second copy from the third replica."""
    with lab.load() as load:
        with lab.gates.open(OTHER, ACCEPT):
            load.send()
            csn = lab.spark.receive()
        load.require_once(csn)


def test_the_home_freezes_while_tasks_upload(lab: SparkLab) -> None:
    """The home freezes for longer than its session: the load succeeds or fails, and runs once in the end."""
    with lab.load(held=True) as load:
        with load.held():
            lab.cluster.kill(HOME, signal.SIGSTOP)
        try:
            time.sleep(FROZEN_S)
        finally:
            lab.cluster.kill(HOME, signal.SIGCONT)
        try:
            csn = lab.spark.receive()
        except SparkJobError:
            load.require_nothing()
        else:
            load.require_once(csn)
