"""Tests that start everything that tests start, say so, and never end: test_interrupted_runs.py runs them.

They are collected when this file is named, and only then.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.clusters.cluster import ClusterFactory
from tests.support.spark.process import SparkProcess
from tidelock.cluster import LocalCluster

#: Names the folder in which a test that is held leaves a file.
HELD = "TIDELOCK_HELD"

pytestmark = pytest.mark.skipif(HELD not in os.environ, reason="run by test_interrupted_runs.py alone")


def _hold(name: str) -> None:
    Path(os.environ[HELD], name).touch()
    while True:
        signal.pause()


def test_a_zookeeper_and_forked_agents_are_held(cluster: ClusterFactory) -> None:
    """ZooKeeper is executed, agents are forked off their template, readers are their children."""
    cluster(replicas=2)
    _hold("forked")


def test_a_session_of_spark_is_held_beside_executed_agents(tmp_path: Path) -> None:
    """A cluster as `tidelock up` starts it, which survives its starter, and a session with its JVM."""
    with LocalCluster.create(tmp_path / "cluster", replicas=1), SparkProcess("classic", tmp_path) as spark:
        spark.sql("SELECT 1")
        _hold("executed")
