"""A ZooKeeper leader whose wall clock is wrong by days and years decides on no label, history or time.

Three real servers. The clock of the leader jumps while they run; the agents' clocks are right. With three
agents the leader's clock counts for nothing; with two it is one of three (docs/design/protocol-rules.md,
effective time).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.clusters.clocks import ATTENTIVE, DAY_S, FORGETTING_S
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import require_clean_audit
from tests.support.waiting import eventually
from tests.support.zookeeper.clocks import clocked_servers, set_server_clock
from tidelock.client import connect
from tidelock.cluster import LocalCluster
from tidelock.errors import LabelExistsError
from tidelock.zookeeper import LocalZooKeeper
from workloads.agents import ask

SCHEMA: Final = pa.schema([pa.field("n", pa.int64(), nullable=False)])
NUMBERS: Final = itertools.count(1)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalZooKeeper]:
    """Three servers whose clocks a test sets."""
    with clocked_servers(tmp_path_factory.mktemp("zookeeper"), size=3) as servers:
        yield servers


@pytest.fixture(scope="module", params=[3, 2])
def local(
    module_cluster: ClusterFactory, servers: LocalZooKeeper, request: pytest.FixtureRequest
) -> LocalCluster:
    """A cluster at these servers."""
    return module_cluster(
        replicas=request.param, copies=2, settings=QUICK | ATTENTIVE, zk=servers.connect_string
    )


def rows(*numbers: int) -> pa.Table:
    """Return rows."""
    return pa.table({"n": numbers}, SCHEMA)


def is_ahead(local: LocalCluster, replica: str, seconds: float) -> bool:
    """Return whether a replica says that its clock is so much ahead of the leader's."""
    clock: dict[str, Any] = ask(local, replica, "/status")["clock"]
    ahead: float | None = clock["ahead_s"].get("zookeeper")
    return ahead is not None and abs(ahead - seconds) < 2


@pytest.mark.scenario("S37")
@pytest.mark.parametrize("days", [3650, *(pytest.param(days, marks=pytest.mark.slow) for days in (1, -3650))])
@pytest.mark.slow
def test_a_leader_whose_clock_jumps_decides_nothing(
    local: LocalCluster, servers: LocalZooKeeper, days: int
) -> None:
    """Labels stay taken, history stays, commits get the true time, and each replica says what it sees."""
    table = f"t{next(NUMBERS)}"
    label = f"job of {table}"
    begun = datetime.now(UTC)
    with local.connect("r1") as db:
        db.create_table(table, SCHEMA)
        old = db.insert(table, rows(1), label=label).csn
        db.truncate(table)
        db.insert(table, rows(1))
        leader = servers.leader()
        assert leader is not None
        set_server_clock(leader, days * DAY_S)
        try:
            for replica in local.replicas:
                eventually(
                    partial(is_ahead, local, replica, -days * DAY_S),
                    what=f"{replica} sees that the leader's clock is off",
                )
                assert not ask(local, replica, "/status")["clock"]["off"]
            until = datetime.now(UTC) + timedelta(seconds=FORGETTING_S)
            last = 1
            while datetime.now(UTC) < until:
                last += 1
                done = db.insert(table, rows(last))
                assert done.time is not None
                assert begun <= done.time + timedelta(seconds=1)
                assert done.time <= datetime.now(UTC) + timedelta(seconds=1)
            assert servers.leader() == leader
            all_rows = list(range(1, last + 1))
            with connect(local.urls) as anyone, anyone.snapshot(at=datetime.now(UTC)) as snap:
                assert sorted(snap.read(table)["n"].to_pylist()) == all_rows
            with pytest.raises(LabelExistsError):
                db.insert(table, rows(0), label=label)
        finally:
            set_server_clock(leader, 0.0)
        db.insert(table, rows(last + 1))
        with connect(local.urls) as anyone, anyone.snapshot(at=datetime.now(UTC)) as snap:
            assert sorted(snap.read(table)["n"].to_pylist()) == [*all_rows, last + 1]
        with pytest.raises(LabelExistsError):
            db.insert(table, rows(0), label=label)
        for replica in local.replicas:
            with local.connect(replica) as there, there.snapshot(csn=old) as snap:
                assert len(snap.read(table)) == 1
    require_clean_audit(local)
