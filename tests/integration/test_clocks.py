"""Clocks that are wrong by days, on real agents: no single one decides on labels, history or the log's time.

The agents' wall clocks jump while they run (`tests/support/clusters/clocks.py`); ZooKeeper's clock is right.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.clusters.clocks import ATTENTIVE, DAY_S, FORGETTING_S, Clocks
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.refusals import http
from tests.support.histories.evidence import require_clean_audit
from tests.support.waiting import eventually
from tidelock.client import Database, connect
from tidelock.cluster import LocalCluster
from tidelock.errors import LabelExistsError
from tidelock.wire.log import LogEntry
from workloads.agents import ask

REPLICAS: Final = ("r1", "r2", "r3")
SCHEMA: Final = pa.schema([pa.field("n", pa.int64(), nullable=False)])
NUMBERS: Final = itertools.count(1)


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Clocks:
    """The clocks of all agents."""
    return Clocks(tmp_path_factory.mktemp("clocks"), REPLICAS)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, clocks: Clocks) -> LocalCluster:
    """One cluster for the module."""
    return module_cluster(settings=QUICK | ATTENTIVE, environment_of=clocks.environments)


@pytest.fixture
def right(clocks: Clocks) -> Iterator[None]:
    """All clocks are right at the end of a test."""
    yield
    for replica in REPLICAS:
        clocks.set(replica, 0.0)


@pytest.fixture
def table(db: Database) -> str:
    """A new table."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, SCHEMA)
    return name


def rows(*numbers: int) -> pa.Table:
    """Return rows."""
    return pa.table({"n": numbers}, SCHEMA)


def go_on(local: LocalCluster) -> None:
    """Commit at r2, whose clock is right, while the other replicas' tasks run with their clocks."""
    with local.connect("r2") as there:
        name = f"t{next(NUMBERS)}"
        there.create_table(name, SCHEMA)
        until = datetime.now(UTC) + timedelta(seconds=FORGETTING_S)
        eventually(lambda: bool(there.insert(name, rows(1)).csn) and datetime.now(UTC) > until)


def labelled(db: Database, table: str, label: str) -> int | None:
    """Run a job that counts once; return its CSN."""
    with db.begin(label=label) as tx:
        tx.insert(table, rows(1, 2, 3))
        return tx.commit().csn


@pytest.mark.scenario("S37")
@pytest.mark.usefixtures("right")
@pytest.mark.parametrize("days", [40, -40])
@pytest.mark.few(1)
def test_a_home_whose_clock_jumps_by_days_frees_no_label(
    local: LocalCluster, db: Database, clocks: Clocks, table: str, days: int
) -> None:
    """A labelled job that runs again after the jump is refused, so its rows exist once (finding 5, I8)."""
    label = f"job of {table}"
    first = labelled(db, table, label)
    clocks.set("r1", days * DAY_S)
    go_on(local)
    clocks.set("r1", 0.0)
    with pytest.raises(LabelExistsError) as refused:
        labelled(db, table, label)
    assert refused.value.details["csn"] == first
    assert len(db.read(table)) == 3


@pytest.mark.scenario("S37")
@pytest.mark.usefixtures("right")
def test_an_agent_whose_clock_jumps_by_days_gives_up_no_history(
    local: LocalCluster, db: Database, clocks: Clocks, table: str
) -> None:
    """A CSN that is seconds old stays readable on all replicas, whichever clock jumps (finding 5)."""
    old = db.insert(table, rows(1, 2, 3)).csn
    db.truncate(table)
    for replica in ("r1", "r3"):
        clocks.set(replica, 40 * DAY_S)
        go_on(local)
        clocks.set(replica, 0.0)
        for other in REPLICAS:
            with local.connect(other) as there, there.snapshot(csn=old) as snap:
                assert len(snap.read(table)) == 3


@pytest.mark.scenario("S37")
@pytest.mark.usefixtures("right")
@pytest.mark.parametrize("years", [10, -10])
def test_commits_of_a_home_whose_clock_is_years_off_get_the_true_time(
    local: LocalCluster, db: Database, clocks: Clocks, table: str, years: int
) -> None:
    """The log's time goes on, and a snapshot at the present time has every acknowledged row (finding 6)."""
    begun = datetime.now(UTC)
    db.insert(table, rows(1))
    clocks.set("r1", years * 365 * DAY_S)
    wrong = db.insert(table, rows(2))
    clocks.set("r1", 0.0)
    with local.connect("r2") as there:
        right = there.insert(table, rows(3))
        for done in (wrong, right):
            assert done.time is not None
            assert begun - timedelta(seconds=1) <= done.time <= datetime.now(UTC) + timedelta(seconds=1)
        with connect(local.urls) as anyone, anyone.snapshot(at=datetime.now(UTC)) as snap:
            assert sorted(snap.read(table)["n"].to_pylist()) == [1, 2, 3]


@pytest.mark.scenario("S37")
@pytest.mark.slow
@pytest.mark.usefixtures("right")
def test_a_clock_that_jumps_back_and_forth_decides_nothing(
    local: LocalCluster, db: Database, clocks: Clocks, table: str
) -> None:
    """While it does so all the time, commits get true times in their order, and old CSNs stay readable."""
    ended = threading.Event()

    def strobe() -> None:
        for days in itertools.cycle((1, -1, 0)):
            clocks.set("r1", days * DAY_S)
            if ended.wait(0.02):
                return

    begun = datetime.now(UTC)
    thread = threading.Thread(target=strobe)
    thread.start()
    try:
        done = [db.insert(table, rows(number)) for number in range(60)]
        go_on(local)
    finally:
        ended.set()
        thread.join()
    times = [one.time for one in done if one.time is not None]
    assert len(times) == len(done)
    assert times == sorted(times)
    assert begun - timedelta(seconds=1) <= times[0]
    assert times[-1] <= datetime.now(UTC) + timedelta(seconds=1)
    for replica in REPLICAS:
        with local.connect(replica) as there, there.snapshot(csn=done[9].csn) as snap:
            assert sorted(snap.read(table)["n"].to_pylist()) == list(range(10))


@pytest.mark.usefixtures("right")
@pytest.mark.parametrize("days", [1, -1])
@pytest.mark.few(1)
def test_an_agent_whose_clock_is_off_says_so_and_goes_on(
    local: LocalCluster, db: Database, clocks: Clocks, table: str, days: int
) -> None:
    """Once in its log, in its status, and as a metric; its commits get the true time."""
    eventually(
        lambda: logged(local, "r1", "clock_off") == logged(local, "r1", "clock_right"),
        what="r1 has seen that its clock was set right after the test before",
    )
    said = logged(local, "r1", "clock_off")
    clocks.set("r1", days * DAY_S)
    found = eventually(lambda: off(local, "r1"), what="r1 says that its clock is off")
    assert found["offset_s"] == pytest.approx(days * DAY_S, abs=1)
    assert {"r2", "r3"} <= found["ahead_s"].keys()
    assert not off(local, "r2")
    assert not off(local, "r3")
    metrics = f"{local.url('r1')}/metrics"
    eventually(lambda: b"tidelock_clock_off 1.0" in http("GET", metrics).data, what="a metric says so too")
    done = db.insert(table, rows(1))
    assert done.time is not None
    assert abs(done.time - datetime.now(UTC)) < timedelta(seconds=1)
    go_on(local)
    assert logged(local, "r1", "clock_off") == said + 1
    clocks.set("r1", 0.0)
    eventually(lambda: not off(local, "r1"), what="r1 says nothing any more")
    eventually(lambda: logged(local, "r1", "clock_right") == said + 1, what="r1 says that its clock is right")


@pytest.mark.usefixtures("right")
def test_the_time_of_a_log_that_most_clocks_have_made_wrong_heals(
    local: LocalCluster, db: Database, clocks: Clocks, table: str
) -> None:
    """Two of three agents are a year ahead; after that all replicas have the true times again."""
    for replica in ("r1", "r2"):
        clocks.set(replica, 365 * DAY_S)
    eventually(lambda: off(local, "r3"), what="r3 is outvoted")
    eventually(lambda: agree(local, "r1", "r2"), what="r1 has asked r2 for the time")
    wrong = db.insert(table, rows(1))
    assert wrong.csn is not None
    assert wrong.time is not None
    assert wrong.time > datetime.now(UTC) + timedelta(days=364)
    for replica in ("r1", "r2"):
        clocks.set(replica, 0.0)
    eventually(lambda: not any(off(local, replica) for replica in REPLICAS), what="all clocks agree")
    now = datetime.now(UTC)
    with db.snapshot(at=now) as snap:
        assert len(snap.read(table)) == 1
    for replica in REPLICAS:
        with local.connect(replica) as there:
            csn, read = wrong.csn, there.time_of
            eventually(partial(has_come, read, csn), what=f"a true time at {replica}")
    assert db.csn_at(now) >= wrong.csn
    require_clean_audit(local)


@pytest.mark.slow
def test_the_time_of_an_idle_shard_goes_on(local: LocalCluster, db: Database, table: str) -> None:
    """One replica writes a record without transactions now and then, and no table changes by it."""
    done = db.insert(table, rows(1), wait="all")
    assert done.csn is not None
    assert done.time is not None

    after = done.csn + 1

    def later() -> list[LogEntry]:
        return [entry for entry in db.log(after) if not entry["tids"]]

    ticks = eventually(lambda: later()[3:] and later(), what="four ticks")
    assert {(entry["kind"], entry["home"]) for entry in ticks} == {("commit", "r1")}
    seconds = (ticks[-1]["time_ms"] - ticks[0]["time_ms"]) / 1000
    assert seconds >= (len(ticks) - 1) * ATTENTIVE["tick_interval_s"] * 0.7
    assert db.time_of(ticks[-1]["csn"]) > done.time + timedelta(seconds=2)
    assert (db.last_change(table).csn, db.last_change(table).time) == (done.csn, done.time)
    assert list(db.changes(table, done.csn).sets()) == []


def test_another_replica_writes_the_ticks_while_the_first_one_is_away(
    local: LocalCluster, db: Database, table: str
) -> None:
    """The log's time does not depend on one replica."""
    csn = db.insert(table, rows(1)).csn
    assert csn is not None
    local.stop("r1")
    try:
        with local.connect("r2") as there:
            eventually(
                lambda: any(not entry["tids"] and entry["home"] != "r1" for entry in there.log(csn + 1)),
                what="a tick of another replica",
            )
    finally:
        local.start("r1")


def has_come(time_of: Callable[[int], datetime], csn: int) -> bool:
    """Return whether the time of a CSN is not in the future."""
    return time_of(csn) <= datetime.now(UTC)


def off(local: LocalCluster, replica: str) -> Any:
    """Return what a replica says of its clock if it is off, else None."""
    clock = ask(local, replica, "/status")["clock"]
    return clock if clock["off"] else None


def agree(local: LocalCluster, replica: str, other: str) -> bool:
    """Return whether a replica knows of another that its clock is like its own."""
    ahead_s: float = ask(local, replica, "/status")["clock"]["ahead_s"][other]
    return abs(ahead_s) < 1


def logged(local: LocalCluster, replica: str, event: str) -> int:
    """Return how often a replica has logged an event."""
    lines = local.log(replica).read_text(encoding="utf-8").splitlines()
    return sum(json.loads(line).get("event") == event for line in lines if line.startswith("{"))
