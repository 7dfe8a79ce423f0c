"""Streaming queries whose driver is killed again and again: each row is there once, one commit to a batch."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left, require_clean_audit
from tests.support.histories.table_model import float_of, require_floats
from tests.support.spark.process import SparkJobError, SparkProcess
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.spark.source.stream_write import label_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string()), ("f", pa.float64())])
SECRET: Final = "a shared secret"
SETTINGS: Final = {**QUICK, "audit_settle_s": 1, "secret": SECRET}
BATCHES: Final = 205
ROWS: Final = 3
KILLS: Final = 5
#: Tables that are written by the sink, and by a function for each batch.
SINK, FUNCTION = TARGETS = ("by_sink", "by_function")
#: Two queries of one session may damage a collection of Spark when they begin at once. It then has fewer
#: elements than it says, no task can be serialised any more, and only a new driver helps. No code of this
#: project is in the stack. So the second query waits for a batch of the first one.
#: On such a machine a Python process may also take longer to start than the ten seconds that Spark allows,
#: for which it has no setting.
SPOILED: Final = re.compile(
    r"Illegal size \d+ of collection, expected \d+|Python worker failed to connect back"
)
#: Sessions in which a user tries to get a query running again, at most.
SESSIONS: Final = 4
#: A batch that hangs fails the test before its own limit does.
BATCH_TIMEOUT_S: Final = 120.0
#: Between the last task of a batch and its commit PySpark starts a process, slowly on a busy machine.
LEASE_S: Final = 30


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Three replicas."""
    return module_cluster(settings=SETTINGS)


class SpoiledSessionError(Exception):
    """The session cannot run any task any more, by a fault of Spark."""


class Queries:
    """One query for each target, in one session after the other."""

    def __init__(self, local: LocalCluster, db: Database, folder: Path, start: int) -> None:
        self._db = db
        self._source = {
            "url": local.url("r2"),
            "token": SECRET,
            "table": "source",
            "startingCsn": str(start),
            "maxFilesPerTrigger": "1",  # each commit is a batch
        }
        sink = {"url": local.url("r3"), "token": SECRET}
        places = {target: str(folder / target) for target in TARGETS}
        self._sink = sink | {
            "table": SINK,
            "checkpointLocation": places[SINK],
            "leaseSeconds": str(LEASE_S),
        }
        self._function = sink | {"table": FUNCTION, "checkpoint": places[FUNCTION]}
        self.ids: Mapping[str, str] = {}

    def start(self, spark: SparkProcess) -> None:
        """Go on from the checkpoints; the ids stay."""
        first = spark.call("stream", name=SINK, source=self._source, sink=self._sink)
        assert self.ids.get(SINK, first) == first
        reached = self._reached(SINK, first)
        if reached < BATCHES - 1:  # a query that has read everything has no further batch
            self._wait(spark, SINK, first, reached)
        second = spark.call("fan_out", name=FUNCTION, source=self._source, **self._function)
        assert self.ids.get(FUNCTION, second) == second
        self.ids = {SINK: first, FUNCTION: second}

    def wait_for(self, spark: SparkProcess, batch: int) -> None:
        """Wait until each query has committed a batch; raise its error if one has ended."""
        for name, query in self.ids.items():
            while (reached := self._reached(name, query)) < batch:
                self._wait(spark, name, query, reached)

    def catch_up(self, spark: SparkProcess) -> None:
        """Wait until both queries have read everything."""
        for name in self.ids:
            try:
                spark.call("caught_up", name=name)
            except SparkJobError as error:
                raise _told(str(error)) from error

    def _wait(self, spark: SparkProcess, name: str, query: str, reached: int) -> None:
        """Wait for a batch behind ``reached``; raise the error of a query that has ended."""

        def goes_on() -> bool:
            failure = spark.call("failure", name=name)
            if failure is not None:
                raise _told(failure)
            return self._reached(name, query) > reached

        eventually(goes_on, timeout_s=BATCH_TIMEOUT_S, what=f"a batch of {name} behind {reached}")

    def _reached(self, name: str, query: str) -> int:
        """Return the number of the last batch that a query has committed."""
        status = self._db.label(label_of(query, SINK) if name == SINK else query)
        return -1 if status is None or status.batch is None else status.batch


def _told(failure: str) -> Exception:
    return SpoiledSessionError(failure) if SPOILED.search(failure) else AssertionError(failure)


def in_a_session(folder: Path, queries: Queries, work: Callable[[SparkProcess], None]) -> None:
    """Run both queries in a new session while ``work`` lasts, as a user does who starts a driver again."""
    for attempt in range(1, SESSIONS + 1):
        with SparkProcess("retrying", folder, python_workers=True) as spark:
            try:
                queries.start(spark)
                work(spark)
            except SpoiledSessionError:
                assert attempt < SESSIONS
                continue
            return


@pytest.mark.timeout(1500)
def test_killed_drivers_lose_or_double_no_batch(local: LocalCluster, db: Database, tmp_path: Path) -> None:
    """Two queries over 205 micro-batches, SIGKILL to their driver five times: nothing lost or doubled."""
    for table in ("source", *TARGETS):
        db.create_table(table, SCHEMA)
    start = db.seen_csn
    for batch in range(BATCHES):
        keys = range(batch * ROWS, (batch + 1) * ROWS)
        db.insert("source", pa.table({"k": keys, "v": ["x"] * ROWS, "f": list(map(float_of, keys))}, SCHEMA))
    chance = random.Random(5)
    queries = Queries(local, db, tmp_path, start)
    for kill in range(KILLS):
        batch = (kill + 1) * BATCHES // (KILLS + 2)

        def until_killed(spark: SparkProcess, batch: int = batch) -> None:
            queries.wait_for(spark, batch)
            time.sleep(chance.uniform(0.0, 0.6))  # at any point of a batch
            spark.kill()

        in_a_session(tmp_path, queries, until_killed)
    in_a_session(tmp_path, queries, queries.catch_up)
    for target in TARGETS:
        with db.begin(fresh=True) as tx:
            found = tx.read(target).sort_by("k")
            every_key = list(range(BATCHES * ROWS))
            assert found["k"].to_pylist() == every_key
            require_floats(found["f"].to_pylist(), every_key)
        commits = list(db.changes(target, start).sets())
        assert [sum(part.rows for part in commit.added) for commit in commits] == [ROWS] * BATCHES
        assert not any(commit.removed for commit in commits)
    time.sleep(LEASE_S)  # the transaction of the dead driver ends with its lease
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
    require_clean_audit(local)
