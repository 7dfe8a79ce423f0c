"""Copies that are cut short: manifests without a record, a source that dies, undecided parts."""

from __future__ import annotations

import functools
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from tests.support.clusters.clocks import DAY_S, Clocks
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.lab import Gates
from tests.support.faults.tampering import rows as catalog_rows
from tests.support.histories.evidence import nothing_left, require_clean_audit
from tests.support.waiting import eventually
from tidelock.cluster import LocalCluster
from tidelock.errors import TidelockError
from workloads.agents import ask

BEFORE, FETCH = "csnlog.commit.before", "replication.fetch.after"
SCHEMA: Final = pa.schema([("n", pa.int64())])
#: Homes that are dead are fenced soon, and what they have left is looked for all the time.
SETTINGS: Final = QUICK | {"session_timeout_s": 3, "fence_timeout_s": 1, "clean_interval_s": 0.2}
LARGE: Final = 20_000

pytestmark = pytest.mark.slow


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Clients that wait for an answer while the test goes on."""
    with ThreadPoolExecutor() as executor:
        yield executor


def rows(*numbers: int) -> pa.Table:
    """Return rows."""
    return pa.table({"n": numbers}, SCHEMA)


def parts(local: LocalCluster, replica: str, tid: str, kind: str = "part") -> int:
    """Return how many parts of a transaction are in a catalog."""
    sql = "SELECT count(*) FROM parts WHERE creation_tid = ? AND kind = ?"
    return int(catalog_rows(local.data_dir(replica), sql, tid, kind)[0][0])


def aborted(local: LocalCluster, replica: str, tid: str) -> bool:
    """Return whether a replica tells a transaction as aborted."""
    return bool(ask(local, replica, f"/outcomes/{tid}")["outcome"] == "aborted")


@pytest.mark.scenario("S12")
def test_a_manifest_whose_home_dies_before_the_record(cluster: ClusterFactory, tmp_path: Path) -> None:
    """Peers have it and the parts, and no record names it: they delete it while the home is dead."""
    gates = Gates(tmp_path / "gates", {"r1": {BEFORE: "crash"}})
    settings = SETTINGS | {"inline_entries_bytes_max": 100, "undecided_check_s": 2}
    local = cluster(settings=settings, environment_of={"r1": gates.environment("r1")})
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
        db.insert("t", rows(1), wait="all")
        tx = db.begin()
        tx.insert("t", rows(2, 3))
        with gates.open("r1", BEFORE):
            with pytest.raises(TidelockError):
                tx.commit(timeout_s=1)
            eventually(lambda: local.pid("r1") is None, what="the death of the home")
        assert [parts(local, "r2", tx.tid, kind) for kind in ("manifest", "part")] == [1, 1]
        for replica in ("r2", "r3"):
            eventually(functools.partial(aborted, local, replica, tx.tid), what=f"the outcome at {replica}")
            nothing_left(local.data_dir(replica))
            assert parts(local, replica, tx.tid, "manifest") == 0
        local.start("r1")
        nothing_left(local.data_dir("r1"))
        assert parts(local, "r1", tx.tid, "manifest") == 0
        assert db.read("t")["n"].to_pylist() == [1]
    require_clean_audit(local)


@pytest.mark.scenario("S39")
@pytest.mark.parametrize("victim", ["r1", "r2"])
def test_a_holder_dies_in_mid_transfer(
    cluster: ClusterFactory, tmp_path: Path, threads: ThreadPoolExecutor, victim: str
) -> None:
    """r3 has the first range of a part when one of its two holders is killed: it gets the whole, verified."""
    gates = Gates(tmp_path / "gates", {"r3": {FETCH: "pause"}})
    settings = SETTINGS | {"inline_part_bytes_max": 16 << 10, "fetch_range_bytes": 32 << 10}
    local = cluster(settings=settings, environment_of={"r3": gates.environment("r3")})
    chosen = random.Random(victim)
    numbers = [chosen.getrandbits(62) for _ in range(LARGE)]  # they do not compress
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
        db.insert("t", rows(1), wait="all")
        local.kill("r3")
        csn = db.insert("t", rows(*numbers)).csn or 0
    with gates.open("r3", FETCH):
        started = threads.submit(local.start, "r3")
        gates.await_hit("r3", FETCH)
        local.kill(victim)
    started.result()

    def there() -> bool:
        return bool(ask(local, "r3", "/status")["snapshot_csn"] >= csn)

    eventually(there, what="the part at r3")
    with local.connect("r3") as db, db.snapshot(csn=csn) as snap:
        assert sorted(snap.read("t")["n"].to_pylist()) == sorted([1, *numbers])
    local.start(victim)
    require_clean_audit(local, deep=True)


@pytest.mark.scenario("S77")
def test_history_waits_for_a_replica_that_is_starting(
    cluster: ClusterFactory, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    """r3 stands in its start before a part that is removed meanwhile: the part stays until r3 has it."""
    gates = Gates(tmp_path / "gates", {"r3": {FETCH: "pause"}})
    history = {"history_retention_s": 0.5, "horizon_interval_s": 0.2, "inline_part_bytes_max": 16 << 10}
    local = cluster(settings=SETTINGS | history, environment_of={"r3": gates.environment("r3")})
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
        db.insert("t", rows(1), wait="all")
        local.kill("r3")
        csn = db.insert("t", rows(*range(LARGE))).csn or 0
        with gates.open("r3", FETCH):
            started = threads.submit(local.start, "r3")
            gates.await_hit("r3", FETCH)
            db.truncate("t")
            last = max(db.insert("t", rows(number)).csn or 0 for number in range(20))

            def waits() -> bool:
                held = ask(local, "r1", "/status")["holding_back"]
                return bool(held and (held["kind"], held["name"]) == ("oldest", "r3"))

            eventually(waits, what="history that waits for r3")
            assert ask(local, "r1", "/status")["horizon"] < csn
        started.result()
        eventually(lambda: ask(local, "r3", "/status")["snapshot_csn"] >= last, what="r3 at the end")
        eventually(lambda: ask(local, "r1", "/status")["horizon"] >= csn, what="history that goes on")
    assert "clone_installed" not in local.log("r3").read_text(encoding="utf-8")
    require_clean_audit(local)


@pytest.mark.scenario("S59")
@pytest.mark.parametrize("days", [400, -400])
def test_a_restart_with_a_wrong_clock_keeps_what_is_undecided(
    cluster: ClusterFactory, tmp_path: Path, threads: ThreadPoolExecutor, days: int
) -> None:
    """Parts of an aborted transaction go; those of one that waits for its commit stay, and count."""
    clocks = Clocks(tmp_path, ["r2"])
    gates = Gates(tmp_path / "gates", {"r1": {BEFORE: "pause"}, "r3": {BEFORE: "crash"}})
    environment = {replica: gates.environment(replica) for replica in ("r1", "r3")}
    local = cluster(settings=SETTINGS, environment_of=environment | dict(clocks.environments))
    with local.connect("r1") as db, local.connect("r3") as dying:
        db.create_table("t", SCHEMA)
        db.insert("t", rows(1), wait="all")
        waits, dies = db.begin(), dying.begin(min_csn=db.seen_csn)
        waits.insert("t", rows(2))
        dies.insert("t", rows(3))
        with gates.open("r1", BEFORE), gates.open("r3", BEFORE):
            committing = threads.submit(waits.commit)
            eventually(lambda: parts(local, "r2", waits.tid) == 1, what="a copy at r2")
            with pytest.raises(TidelockError):
                dies.commit(timeout_s=1)
            eventually(lambda: local.pid("r3") is None, what="the death of r3")
            local.kill("r2", signal.SIGKILL)
            clocks.set("r2", days * DAY_S)
            local.start("r2")
            eventually(functools.partial(aborted, local, "r2", dies.tid), what="the fence of r3")
            eventually(lambda: parts(local, "r2", dies.tid) == 0, what="the end of its parts")
            assert parts(local, "r2", waits.tid) == 1
        csn = committing.result().csn or 0
        clocks.set("r2", 0.0)
        with local.connect("r2") as there, there.snapshot(min_csn=csn) as snap:
            assert sorted(snap.read("t")["n"].to_pylist()) == [1, 2]
        local.start("r3")
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
