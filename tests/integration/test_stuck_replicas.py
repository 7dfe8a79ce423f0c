"""A replica that lives and cannot apply the log stops nobody, says what it lacks, and comes back by itself.

Three real agents, `copies` = 2, and a small `max_lag`: the third replica is stuck, the others are well.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults import ability
from tests.support.faults.lab import Gates
from tests.support.faults.refusals import Addresses, http
from tests.support.faults.small_disk import MIB, NO_DISK, SmallDisk
from tests.support.faults.tampering import rows
from tests.support.waiting import eventually
from tidelock.client import Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import DiskFullError, NotEnoughReplicasError, UnavailableError, UnknownTableError

MAX_LAG: Final = 10
SETTINGS: Final = QUICK | {"max_lag": MAX_LAG, "blocked_after_s": 1, "lag_delay_max_s": 0.2}
#: Commits while a replica is stuck: far more than the lag at which commits are delayed.
COMMITS: Final = 4 * MAX_LAG
STUCK: Final = "r3"
SCHEMA: Final = pa.schema([("k", pa.int64())])
#: By gate: the fault points at which the stuck replica meets the trouble.
TROUBLES: Final = {
    "enospc": ("agent.catalog.before",),
    "always": ("replication.accept.before", "replication.fetch.before"),
    "pause": ("replication.apply.before",),
}


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """The troubles of r3, none of which acts yet."""
    points = {point: kind for kind, points in TROUBLES.items() for point in points}
    return Gates(tmp_path_factory.mktemp("gates"), {STUCK: points})


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, gates: Gates) -> LocalCluster:
    """The cluster, with a table."""
    local = module_cluster(settings=SETTINGS, environment_of={STUCK: gates.environment(STUCK)})
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
    return local


def commit_many(local: LocalCluster, homes: tuple[str, ...] = ("r1", "r2"), count: int = COMMITS) -> int:
    """Commit at these homes in turn; return the last CSN. A refusal is a failed test."""
    last = 0
    with local.connect(homes[0]) as one, local.connect(homes[-1]) as other:
        for number in range(count):
            db = (one, other)[number % 2]
            last = db.insert("t", pa.table({"k": [number]}, schema=SCHEMA)).csn or 0
    return last


def seen(local: LocalCluster, of: str, by: str = "r1") -> dict[str, Any]:
    """Return a replica as another one shows it."""
    replicas = http("GET", f"{Addresses.of(local, by).api}/status").json["replicas"]
    return next(row for row in replicas if row["id"] == of)


def rows_at(local: LocalCluster, replica: str, csn: int) -> int:
    """Return the rows of the table at a CSN on one replica."""
    with local.connect(replica) as db, db.snapshot(csn=csn) as snap:
        return snap.scan("t").count()


def require_healed(local: LocalCluster, csn: int) -> None:
    """All replicas have the CSN, with the same rows, and follow."""
    eventually(
        lambda: all(seen(local, of)["snapshot_csn"] >= csn for of in local.replicas), what="catching up"
    )
    eventually(
        lambda: {seen(local, of)["phase"] for of in local.replicas} == {"following"}, what="the phases"
    )
    assert len({rows_at(local, replica, csn) for replica in local.replicas}) == 1


@pytest.mark.scenario("S47")
@pytest.mark.parametrize("kind", TROUBLES)
@pytest.mark.few(1)
def test_commits_go_on_while_one_replica_is_stuck(local: LocalCluster, gates: Gates, kind: str) -> None:
    """Whether its disk is full, it gets no parts, or its catalog hangs: no commit of the others fails."""
    with gates.open(STUCK, *TROUBLES[kind]):
        csn = commit_many(local)
        eventually(lambda: seen(local, STUCK)["phase"] in {"blocked", "full"}, what="the phase")
        stuck = seen(local, STUCK)
        assert stuck["phase"] == ("full" if kind == "enospc" else "blocked")
        assert stuck["snapshot_csn"] < csn - MAX_LAG
        if kind == "always":
            blocked_by = stuck["blocked_by"]
            assert blocked_by["csn"] == stuck["snapshot_csn"] + 1
            explained = http("GET", f"{Addresses.of(local, 'r1').api}/explain/{blocked_by['tid']}").json
            assert blocked_by["part"] in {part["part"] for part in explained["parts"]}
        assert stuck["phase_since_ms"] > 0
        csn = commit_many(local)
    require_healed(local, csn)


def test_a_stuck_replica_begins_no_transaction(local: LocalCluster, gates: Gates) -> None:
    """It could not show a client what it has committed; the reason names the part that it lacks."""
    with gates.open(STUCK, *TROUBLES["always"]):
        csn = commit_many(local)
        eventually(lambda: seen(local, STUCK, by=STUCK)["phase"] == "blocked", what="the phase")
        with local.connect(STUCK) as db, pytest.raises(UnavailableError, match="it cannot apply the log"):
            db.begin(fresh=True)
        before = seen(local, STUCK)["snapshot_csn"]
        assert rows_at(local, STUCK, before) > 0  # what it has applied is read there
    require_healed(local, csn)


def test_rows_find_a_table_of_which_their_replica_has_not_heard(local: LocalCluster, gates: Gates) -> None:
    """The table was created elsewhere before: a client that inserts here next need not know that."""
    row = pa.table({"k": [1]}, schema=SCHEMA)
    with ThreadPoolExecutor(2) as threads, local.connect(STUCK) as one, local.connect(STUCK) as other:
        with gates.open(STUCK, *TROUBLES["pause"]):
            with local.connect("r1") as db:
                db.create_table("late", SCHEMA)
            inserted = [
                threads.submit(one.insert, "late", row),
                threads.submit(other.insert, "late", row, merge_schema=True),
            ]
            time.sleep(0.5)  # both have asked, and the record of the table is not applied
        csn = max(one.result().csn or 0 for one in inserted)
        with pytest.raises(UnknownTableError):
            one.write({"late": row, "gone": row})
    require_healed(local, csn)
    with local.connect(STUCK) as db:
        assert db.read("late", csn=csn).num_rows == 2


def test_a_replica_that_comes_back_stops_nobody(local: LocalCluster) -> None:
    """A replica that has missed many CSNs is not waited for while it fetches them."""
    local.kill(STUCK)
    commit_many(local, count=8 * MAX_LAG)
    local.start(STUCK)
    csn = commit_many(local, count=2 * MAX_LAG)
    require_healed(local, csn)


def test_commits_go_on_while_a_real_disk_is_full(module_cluster: ClusterFactory) -> None:
    """As above, with a file system that has no byte left; with room the replica comes back by itself."""
    local = module_cluster(settings=SETTINGS, start=False)
    disk = SmallDisk(local.data_dir(STUCK))
    if not disk.mounted():
        ability.require(NO_DISK)
    try:
        local.up()
        with local.connect("r1") as db:
            db.create_table("t", SCHEMA)
            db.insert("t", pa.table({"k": [1]}, schema=SCHEMA), wait="all")
        with disk.full():
            csn = commit_many(local)
            eventually(lambda: seen(local, STUCK)["phase"] == "full", what="the phase")
            told = http("GET", f"{local.url(STUCK)}/metrics").data.decode().splitlines()
            assert 'tidelock_replica_phase{tidelock_replica_phase="full"} 1.0' in told
            [free] = [line for line in told if line.startswith("tidelock_disk_free_bytes ")]
            assert float(free.split()[1]) < MIB
            csn = commit_many(local)
        require_healed(local, csn)
        said = [
            json.loads(line)
            for line in local.log(STUCK).read_text(encoding="utf-8").splitlines()
            if line.startswith("{")
        ]
        full = [line for line in said if (line["event"], line.get("now")) == ("phase", "full")]
        assert {line["level"] for line in full} == {"warning"}
    finally:
        for replica in local.replicas:
            local.kill(replica)
        disk.unmount()


@pytest.mark.slow
def test_a_disk_in_its_reserve_goes_on_with_what_others_need(module_cluster: ClusterFactory) -> None:
    """Below the reserve only rows are refused; below the floor copies are refused, too."""
    reserve = {"disk_reserve_bytes": 8 * MIB, "disk_reserve_share": 1.0, "disk_floor_share": 0.25}
    collecting = {"history_retention_s": 1, "horizon_interval_s": 0.2}
    local = module_cluster(settings=SETTINGS | reserve | collecting, start=False)
    disk = SmallDisk(local.data_dir("r1"))
    if not disk.mounted():
        ability.require(NO_DISK)
    try:
        local.up()
        with local.connect("r1") as db, local.connect("r2") as other:
            db.create_table("t", SCHEMA)
            db.create_table("emptied", SCHEMA)
            db.insert("emptied", pa.table({"k": [1]}, schema=SCHEMA), wait="all")
            filled, truncating = db.begin(fresh=True), db.begin(fresh=True)
            with disk.full(leaving=6 * MIB):
                require_in_reserve(local, filled, truncating)
                with pytest.raises(UnavailableError, match="its disk is full"):
                    db.begin(fresh=True)
                local.stop("r3")
                other.insert("t", pa.table({"k": [1]}, schema=SCHEMA), wait="copies")  # r1 is the other copy
                local.start("r3")
                with disk.full(leaving=MIB):
                    commit_many(local, ("r2", "r3"), MAX_LAG // 2)
                    local.stop("r3")
                    with pytest.raises(NotEnoughReplicasError, match="r1"):
                        other.insert("t", pa.table({"k": [1]}, schema=SCHEMA))
                    local.start("r3")
            eventually(lambda: seen(local, "r1")["phase"] == "following", what="the phase")
            csn = db.insert("t", pa.table({"k": [1]}, schema=SCHEMA)).csn or 0
        require_healed(local, csn)
    finally:
        for replica in local.replicas:
            local.kill(replica)
        disk.unmount()


def require_in_reserve(local: LocalCluster, filled: Transaction, truncating: Transaction) -> None:
    """Rows at r1 are refused, with names of replica and folder; what a truncation removes is collected."""
    eventually(lambda: seen(local, "r1")["phase"] == "full", what="the phase")
    with pytest.raises(DiskFullError) as caught:
        filled.insert("t", pa.table({"k": [1]}, schema=SCHEMA))
    assert "replica r1" in caught.value.message
    assert str(local.data_dir("r1")) in caught.value.message
    assert caught.value.details["free_bytes"] < 8 * MIB
    filled.rollback()
    sql = "SELECT file FROM parts WHERE table_name = 'default.emptied'"
    before = [local.data_dir("r1") / file for (file,) in rows(local.data_dir("r1"), sql)]
    assert before
    assert all(path.exists() for path in before)
    truncating.truncate("emptied")
    truncating.commit()
    eventually(lambda: not any(path.exists() for path in before), what="the collection")
