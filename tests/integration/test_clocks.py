"""Clocks that are wrong by days, on real agents: no single one decides on labels, history or the log's time.

The agents' wall clocks jump while they run (`tests/support/clusters/clocks.py`); ZooKeeper's clock is right.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pytest

from tests.support.clusters.clocks import DAY_S, Clocks
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.waiting import eventually
from tidelock.client import Database, connect
from tidelock.cluster import LocalCluster
from tidelock.errors import LabelExistsError

REPLICAS: Final = ("r1", "r2", "r3")
SCHEMA: Final = pa.schema([pa.field("n", pa.int64(), nullable=False)])
NUMBERS: Final = itertools.count(1)
SETTINGS: Final = {
    **QUICK,
    "reader_workers": 1,
    "clean_interval_s": 0.2,
    "horizon_interval_s": 0.2,
}
#: A wrong clock is seen by so many runs of the tasks that forget.
RUNS: Final = 15


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Clocks:
    """The clocks of all agents."""
    return Clocks(tmp_path_factory.mktemp("clocks"), REPLICAS)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, clocks: Clocks) -> LocalCluster:
    """One cluster for the module."""
    return module_cluster(settings=SETTINGS, environment_of=clocks.environments)


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
        until = datetime.now(UTC) + timedelta(seconds=RUNS * SETTINGS["clean_interval_s"])
        eventually(lambda: bool(there.insert(name, rows(1)).csn) and datetime.now(UTC) > until)


def labelled(db: Database, table: str, label: str) -> int | None:
    """Run a job that counts once; return its CSN."""
    with db.begin(label=label) as tx:
        tx.insert(table, rows(1, 2, 3))
        return tx.commit().csn


@pytest.mark.usefixtures("right")
@pytest.mark.parametrize("days", [40, -40])
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
