"""Load on a cluster while everything happens to it that happens to clusters in their lives (issue 13).

Replicas are killed, frozen, struck, replaced, added and removed, disks are lost and fill up, clocks
jump by days, and servers of ZooKeeper die. It takes TIDELOCK_LIVING_S seconds under load (120); for an hour:

    TIDELOCK_LIVING_S=3600 make test-all PYTEST_ARGS="tests/chaos/test_living_cluster.py -n 1"

TIDELOCK_LIVING_SEED repeats the choices of a run, though not its timing. TIDELOCK_LIVING_REPORT is a folder
that keeps the histories and the table of what clients noticed.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.chaos.living.availability import (
    Noticed,
    errors_by_kind,
    noticed,
    refusals_of_well_homes,
    table,
)
from tests.chaos.living.landers import Landers
from tests.chaos.living.nemesis import Nemesis
from tests.chaos.living.spark_readers import SparkReaders
from tests.support.clusters.clocks import Clocks
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults import ability
from tests.support.faults.small_disk import NO_DISK
from tests.support.histories.evidence import verify
from tests.support.histories.workload import Workload
from tests.support.telling import Tell
from tests.support.zookeeper.servers import READY_TIMEOUT_S
from tidelock import zookeeper
from tidelock.cluster import LocalCluster
from tidelock.errors import LabelExistsError

SECONDS: Final = float(os.environ.get("TIDELOCK_LIVING_S", "120"))
SEED: Final = int(os.environ.get("TIDELOCK_LIVING_SEED", str(time.time_ns() % 1_000_000)))
#: One load writes into two tables of its own for so long, then it is checked as a whole.
ROUND_S: Final = 60.0
#: Commits that the cluster makes while the harm of an event is done.
COMMITS_MEANWHILE: Final = 20
WRITERS, SPARK_READERS, LANDERS = 12, 3, 2
SETTINGS: Final = {
    **QUICK,
    "reader_workers": 1,
    "blocked_after_s": 2,
    "clock_check_interval_s": 1,
    "scrub_bytes_per_s": 8 << 20,
    "scrub_interval_s": 10,
    "compare_interval_s": 10,
    "tick_interval_s": 2,
    "compaction_interval_s": 2,
    "horizon_interval_s": 1,
    # Longer than a round with its check; so what earlier rounds removed is collected while replicas clone.
    "history_retention_s": 240,
    "unpinned_ttl_s": 120,
    # The check of a round reads its records. A replica that is further behind clones, also a new one.
    "log_keep_records": 8_000,
}
#: The rows of a job that counts once.
ONCE: Final = pa.table({"job": [1]})

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(SECONDS * 4 + 600)]


@pytest.fixture
def nemesis(cluster: ClusterFactory, tmp_path: Path) -> Iterator[Nemesis]:
    """A cluster of three replicas with disks of their own, above three servers of ZooKeeper."""
    servers = zookeeper.create(tmp_path / "zookeeper", size=3)
    clocks = Clocks(tmp_path, [f"r{number}" for number in range(1, 1000)])
    servers.start(timeout_s=READY_TIMEOUT_S)
    local = cluster(
        zk=servers.connect_string, settings=SETTINGS, environment_of=clocks.environments, start=False
    )
    made = Nemesis(local, servers, clocks, random.Random(SEED))
    try:
        if not made.mount():
            ability.require(NO_DISK)
        local.up(timeout_s=READY_TIMEOUT_S)
        yield made
    finally:
        made.close()
        servers.kill()


@pytest.mark.scenario("S61", "S65", "S71", "S72")
def test_no_commit_is_lost_and_no_well_replica_refuses(nemesis: Nemesis, tmp_path: Path, tell: Tell) -> None:
    """No acknowledged commit is lost, no read is wrong, and no replica that is well refuses a write."""
    report = Path(os.environ.get("TIDELOCK_LIVING_REPORT", tmp_path / "report"))
    report.mkdir(parents=True, exist_ok=True)
    for former in report.glob("*.jsonl"):
        former.unlink()
    local, under_load_s, number = nemesis.cluster, 0.0, 0
    seen: list[Noticed] = []
    errors: Counter[str] = Counter()
    once(local)
    landers = Landers(local, LANDERS)
    with SparkReaders(tmp_path, SPARK_READERS) as sparks:
        while under_load_s < SECONDS:
            number += 1
            before = len(nemesis.spans)
            begin = time.monotonic()
            load = Workload(
                local,
                report,
                f"round{number}",
                writers=[None] * (WRITERS // 2),
                hoppers=WRITERS // 2,
                readers=[None, None],
            )
            with load, sparks.reading(load), landers.landing():
                while time.monotonic() - begin < ROUND_S:
                    nemesis.strike(lambda load=load: load.more_commits(COMMITS_MEANWHILE))  # type: ignore[misc]
                under_load_s += time.monotonic() - begin
            verify(load, commits=2 * COMMITS_MEANWHILE)
            landers.verify(2 * COMMITS_MEANWHILE)
            spans = nemesis.spans[before:]
            lines = [json.loads(line) for line in load.recorder.path.read_text().splitlines()]
            seen += noticed(lines, spans)
            errors += errors_by_kind(lines)
            assert refusals_of_well_homes(lines, spans) == []
            with pytest.raises(LabelExistsError):
                once(local)
            (report / "availability.md").write_text(summary(seen, errors, under_load_s), encoding="utf-8")
    tell(summary(seen, errors, under_load_s))


def once(local: LocalCluster) -> None:
    """Run a job that counts once, whatever clocks say later."""
    with local.connect() as db:
        if not db.tables():
            db.create_table("once", ONCE.schema)
        with db.begin(label="once") as tx:  # it would take no label without rows
            tx.insert("once", ONCE)
            tx.commit()


def summary(seen: list[Noticed], errors: Counter[str], under_load_s: float) -> str:
    """Return the result of a run as text."""
    commits: Any = sum(one.commits for one in seen)
    return (
        f"seed {SEED}, {under_load_s:.0f} s under load, {len(seen)} events, {commits} commits during them, "
        f"failed requests {dict(errors)}\n\n{table(seen)}\n"
    )
