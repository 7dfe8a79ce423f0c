"""A replica that is away, or stuck, for very long: ZooKeeper stays small, the others go on, it comes back."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.writers import SCHEMA, Writers, row, rows_at
from tests.support.faults import ability
from tests.support.faults.lab import Gates
from tests.support.faults.small_disk import NO_DISK, SmallDisk
from tests.support.histories.evidence import require_clean_audit
from tests.support.waiting import eventually
from tests.support.zookeeper.servers import OPTIONS, running
from tidelock import zookeeper
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.zookeeper import LocalZooKeeper

MIB: Final = 1 << 20
#: The replica that is away or stuck.
AWAY: Final = "r3"
COLLECTING: Final = QUICK | {"log_keep_records": 10, "horizon_interval_s": 0.2}
#: The record of one commit takes about 8 KB: a part for each of some partitions with long names.
PARTITIONS: Final = 20
#: So many records are more than a server of HEAP_MB has memory for. It also keeps its last 500 requests.
HEAP_MB: Final = 24
RECORDS: Final = 1600
#: Nothing merges the parts, and inserts do not wait for that.
UNMERGED: Final = {"compaction": False, "parts_delay_insert": 2_500}
NAME: Final = pa.schema([("a", pa.string()), ("b", pa.string()), ("k", pa.int64())])


def member(db: Database, replica: str) -> dict[str, Any]:
    """Return a replica as the others see it."""
    return next(one for one in db.status()["replicas"] if one["id"] == replica)


def has_state(db: Database, replica: str, state: str) -> bool:
    """Return whether the session of a replica has a state."""
    return bool(member(db, replica)["member"] == state)


def follows(db: Database, replica: str, csn: int) -> bool:
    """Return whether a replica serves, and has applied a CSN."""
    found = member(db, replica)
    return bool(found["phase"] == "following" and found["snapshot_csn"] >= csn)


# -- memory of ZooKeeper -------------------------------------------------------------------------------------


@pytest.fixture
def small_zookeeper(tmp_path: Path) -> Iterator[LocalZooKeeper]:
    """A server that ends of memory when it has to hold all records of a test."""
    options = dataclasses.replace(OPTIONS, heap_mb=HEAP_MB)
    with running(zookeeper.create(tmp_path / "small", options=options)) as servers:
        yield servers


def data_bytes(servers: LocalZooKeeper) -> int:
    """Return the bytes of the znodes of a server, which must be alive."""
    answer = servers.servers[0].ask("mntr") or ""
    found = re.search(r"^zk_approximate_data_size\s+(\d+)", answer, re.MULTILINE)
    assert found is not None, f"ZooKeeper does not answer: {answer!r}"
    return int(found[1])


def wide_rows(number: int) -> pa.Table:
    """Return one row for each partition."""
    names = [f"{part:0>90}" for part in range(PARTITIONS)]
    return pa.table({"a": names, "b": [f"{name:x>180}" for name in names], "k": [number] * len(names)}, NAME)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "bound",
    [{"max_records_bytes": 2 * MIB, "log_keep_bytes": MIB}, {"max_records": 50}, {"strike_timeout_s": 10}],
    ids=lambda bound: next(iter(bound)),
)
def test_a_small_zookeeper_outlives_a_replica_that_stays_down(
    cluster: ClusterFactory, small_zookeeper: LocalZooKeeper, bound: dict[str, int]
) -> None:
    """Whichever bound strikes it: without it these records are more than the server has memory for."""
    local = cluster(zk=small_zookeeper.connect_string, settings=COLLECTING | UNMERGED | bound)
    largest = 0
    with local.connect("r1") as db:
        db.create_table("t", NAME, partition_by=["a", "b"])
        local.kill(AWAY)
        for number in range(RECORDS):
            db.insert("t", wide_rows(number))
            largest = max(largest, data_bytes(small_zookeeper))
        eventually(functools.partial(has_state, db, AWAY, "struck"), what="the strike")
        assert len(db.log(0)) <= 50
        local.start(AWAY, timeout_s=300)  # tens of thousands of parts
        csn = db.insert("t", wide_rows(RECORDS)).csn or 0
        eventually(functools.partial(follows, db, AWAY, csn), what="its return")
    assert largest < 8 * MIB
    with local.connect(AWAY) as db:
        assert db.read("t").num_rows == (RECORDS + 1) * PARTITIONS


# -- alive, and stuck ----------------------------------------------------------------------------------------

#: Points at which the stuck replica gets no parts.
NO_PARTS: Final = ("replication.accept.before", "replication.fetch.before")
STRIKING: Final = COLLECTING | {"max_records": 60, "blocked_after_s": 1, "lag_delay_max_s": 0.2}


def commit_past(db: Database, bound: int) -> int:
    """Commit more records than a replica may hold back; return the last CSN. A refusal is a failed test."""
    return max(db.insert("t", row(key)).csn or 0 for key in range(2 * bound))


def require_struck_and_back(local: LocalCluster, stuck: contextlib.AbstractContextManager[None]) -> None:
    """The living replica is struck while it is stuck, the log is cut, and it clones once it can."""
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
        db.insert("t", row(-1), wait="all")
        process = local.pid(AWAY)
        with stuck:
            end = commit_past(db, 60)
            eventually(lambda: member(db, AWAY)["member"] in {"struck", "cloning"}, what="the strike")
            eventually(lambda: db.log(0)[0]["csn"] > end - 60, what="deleted records")
            assert local.pid(AWAY) == process
            end = db.insert("t", row(-2)).csn or 0
        eventually(functools.partial(follows, db, AWAY, end), what="its return")
    assert local.pid(AWAY) == process
    assert rows_at(local, AWAY) == {-2, -1, *range(120)}
    require_clean_audit(local)


@pytest.mark.scenario("S44", "S47")
@pytest.mark.slow
def test_a_living_replica_that_gets_no_parts_is_struck(cluster: ClusterFactory, tmp_path: Path) -> None:
    """It answers, and its session lives: what it holds back counts, not only its silence."""
    gates = Gates(tmp_path / "gates", {AWAY: dict.fromkeys(NO_PARTS, "always")})
    local = cluster(settings=STRIKING, environment_of={AWAY: gates.environment(AWAY)})
    require_struck_and_back(local, gates.open(AWAY, *NO_PARTS))


@pytest.mark.slow
def test_a_living_replica_whose_disk_stays_full_is_struck(cluster: ClusterFactory) -> None:
    """It cannot even clone until there is room, and then it does so by itself."""
    local = cluster(settings=STRIKING, start=False)
    disk = SmallDisk(local.data_dir(AWAY))
    if not disk.mounted():
        ability.require(NO_DISK)
    try:
        local.up()
        require_struck_and_back(local, disk.full())
    finally:
        local.kill(AWAY)
        disk.unmount()


# -- away for thousands of records ---------------------------------------------------------------------------

MISSED: Final = 10_000


@pytest.mark.scenario("S43", "S75")
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kept", [2 * MISSED, MISSED // 10], ids=["it follows", "it clones"])
def test_a_replica_that_missed_thousands_of_records_serves_again(cluster: ClusterFactory, kept: int) -> None:
    """Writers go on while it catches up, by the log or by a clone, and none of their commits is refused."""
    bounds = {"log_keep_records": kept, "max_records": kept}
    local = cluster(settings=QUICK | {"horizon_interval_s": 0.5} | bounds)
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
        db.insert("t", row(-1), wait="all")
        local.kill(AWAY)
        before = int(db.status()["end_csn"])
        writers = [Writers([local.url(home)], 3, first=10**8 * n) for n, home in enumerate(("r1", "r2"))]
        with writers[0].running(), writers[1].running():
            eventually(lambda: db.status()["end_csn"] > before + MISSED, timeout_s=2400, what="the log")
            local.start(AWAY, timeout_s=600)
            for one in writers:
                one.go_on()
            csn = int(db.status()["end_csn"])
            eventually(functools.partial(follows, db, AWAY, csn), timeout_s=300, what="its return")
        csn = db.insert("t", row(-2), wait="all").csn or 0
    assert [error.message for one in writers for error in one.refused] == []
    assert ("clone_installed" in local.log(AWAY).read_text(encoding="utf-8")) == (kept < MISSED)
    with local.connect(AWAY) as db, db.snapshot(csn=csn) as snap:
        found = snap.read("t")["k"].to_pylist()
    assert sorted(found) == sorted([-2, -1, *(key for one in writers for key in one.acknowledged)])
    require_clean_audit(local)
