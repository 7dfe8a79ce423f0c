"""Drivers of Spark that die, pause, or lose ZooKeeper's leader while their transaction is open (issue 5)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.clusters.cluster import ClusterFactory
from tests.support.spark import process
from tests.support.spark.lab import HOME, SparkLab, spark_laboratory
from tests.support.spark.process import SparkJobError
from tests.support.waiting import eventually
from tidelock.zookeeper import LocalZooKeeper

# A session may take minutes to start on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

AFTER: Final = "csnlog.commit.after"
#: Lease of the driver's transaction, in seconds: short, so that its death is noticed soon.
LEASE_S: Final = 6.0


@pytest.fixture(scope="module")
def lab(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkLab]:
    """Executors of a standalone cluster, which outlive their driver for a moment."""
    faults = {HOME: {AFTER: "pause"}}
    with spark_laboratory(
        module_cluster, tmp_path_factory.mktemp("lab"), standalone=True, faults=faults
    ) as lab:
        yield lab


@pytest.mark.scenario("S63")
def test_a_driver_dies_while_its_tasks_upload(lab: SparkLab) -> None:
    """Staged files end with the lease, whatever the executors still do; the next driver starts over."""
    with lab.load(held=True) as load:
        load.hold()
        load.begin(lease=LEASE_S, wait=False)
        load.await_held(2)
        frozen = lab.executors()[0]
        process.freeze(frozen)
        try:
            lab.spark.kill()
            load.release()
            eventually(lambda: not load.staged(), what="disks without what the driver had staged")
        finally:
            process.thaw(frozen)
        load.require_nothing()


@pytest.mark.scenario("S63")
def test_a_driver_dies_before_its_commit(lab: SparkLab) -> None:
    """A job that ended well is no commit: its files end with the lease."""
    with lab.load() as load:
        load.begin(lease=LEASE_S)
        lab.spark.kill()
        eventually(lambda: not load.staged(), what="disks without what the driver had staged")
        load.require_nothing()


def test_a_driver_dies_between_commit_and_answer(lab: SparkLab) -> None:
    """Committed: the next driver gets the CSN by the label, and adds no rows."""
    with lab.load() as load:
        load.begin(lease=LEASE_S)
        with lab.gates.open(HOME, AFTER):
            lab.spark.send("commit")
            lab.gates.await_hit(HOME, AFTER)
            lab.spark.kill()
        load.require_once(load.repeat())


def test_a_driver_pauses_for_less_than_its_lease(lab: SparkLab) -> None:
    """A short pause, as for the JVM's garbage collection, has no effect."""
    with lab.load() as load:
        load.begin(lease=3 * LEASE_S)
        pause(lab, LEASE_S)
        load.require_once(lab.spark.call("commit"))


def test_a_driver_pauses_for_more_than_its_lease(lab: SparkLab) -> None:
    """The transaction is rolled back, and the error says why."""
    with lab.load() as load:
        load.begin(lease=LEASE_S)
        pause(lab, 2 * LEASE_S)
        with pytest.raises(SparkJobError, match="lease"):
            lab.spark.call("commit")
        load.require_nothing()


def test_a_job_outlives_its_lease_many_times(lab: SparkLab) -> None:
    """While the driver waits for its tasks, in Java, a thread of its own renews the lease."""
    with lab.load(held=True) as load:
        load.hold()
        load.begin(lease=LEASE_S, wait=False)
        load.await_held(2)
        time.sleep(4 * LEASE_S)
        load.release()
        lab.spark.receive()
        load.require_once(lab.spark.call("commit"))


def test_the_leader_of_zookeeper_changes(
    cluster: ClusterFactory, ensemble: LocalZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The lease does not depend on ZooKeeper, and neither do uploads; the commit waits for the new leader."""
    folder = tmp_path_factory.mktemp("ensemble")
    with spark_laboratory(cluster, folder, zk=ensemble.connect_string) as lab, lab.load(held=True) as load:
        with load.held():
            leader = ensemble.leader()
            assert leader is not None
            leader.kill()
            followers = [server for server in ensemble.servers if server is not leader]
            ensemble.wait_ready(timeout_s=60, servers=followers)
        csn = lab.spark.receive()
        ensemble.start(timeout_s=60)
        load.require_once(csn)


def pause(lab: SparkLab, duration_s: float) -> None:
    """Stop the driver, its JVM too, for this number of seconds."""
    driver = lab.spark.driver
    process.freeze(driver)
    try:
        time.sleep(duration_s)
    finally:
        process.thaw(driver)
