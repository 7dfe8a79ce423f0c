"""Power cuts at every fault point of a commit (issue 3, Z18).

A replica's data directory is an ext4 file system in a file. The agent pauses at a point, the file is copied
while the file system is in use, the agent is killed, and it starts again from the copy, without the bytes
that were not flushed. Before it starts, the claims of its catalog are compared with the bytes on the platter,
since a running agent repairs lost parts from its peers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pytest

from tests.chaos.cut_points import OF_BOTH, OF_COMMITS, OF_LANDINGS, OF_PEERS, OF_RAISE, OF_ROLLOVER
from tests.chaos.lab import HOME, PEER, REPLICAS, CrashLab, crash_lab
from tests.support.clusters.cluster import ClusterFactory
from tests.support.faults.lab import LARGE_ROWS
from tests.support.histories.workload import ROWS
from tests.support.telling import Tell
from tests.support.waiting import eventually
from tidelock.csnlog.core.ids import Csn, sequence_of
from workloads.history import CallEnd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LOSES_REPLIES: Final = "csnlog.commit.after"
EPOCH_LIMIT: Final = 30
#: Small parts travel inside the push, and their packs keep the name that they were created with.
NOT_OF_SMALL: Final = frozenset({"fetch", "rename"})


def paused(names: list[str]) -> dict[str, str]:
    """Return faults that make a replica wait at these points."""
    return dict.fromkeys(names, "pause")


@pytest.fixture(scope="module")
def crash(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashLab]:
    """One cluster, each replica on a disk of its own, for all points that a commit passes."""
    armed = {HOME: paused([*OF_COMMITS, *OF_LANDINGS]), PEER: paused([*OF_PEERS, *OF_BOTH])}
    folder = tmp_path_factory.mktemp("power")
    with crash_lab(module_cluster, folder, disks_of=REPLICAS, faults=armed) as crash:
        yield crash


@pytest.fixture(scope="module")
def rare(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashLab]:
    """Another cluster, whose home loses replies and whose epochs are short."""
    armed = {HOME: {LOSES_REPLIES: "always", **paused([*OF_RAISE, *OF_ROLLOVER])}}
    folder = tmp_path_factory.mktemp("rare")
    with crash_lab(module_cluster, folder, disks_of=[HOME], faults=armed, epoch_limit=EPOCH_LIMIT) as crash:
        yield crash


@pytest.mark.scenario("S51")
@pytest.mark.parametrize(
    ("victim", "point", "rows"),
    [
        pytest.param(victim, point, rows, id=f"{victim}-{point}-{size}")
        for victim, points in ((HOME, OF_COMMITS), (PEER, [*OF_PEERS, *OF_BOTH]))
        for point in points
        for size, rows in (("large", LARGE_ROWS), ("small", ROWS[0]))
        if size == "large" or point.split(".")[1] not in NOT_OF_SMALL
    ],
)
def test_at_every_point_of_a_commit(crash: CrashLab, victim: str, point: str, rows: int) -> None:
    """The platter has all parts of its catalog; the replica comes back with or without the commit."""
    ending = crash.dark_at(victim, point, rows=rows)
    assert victim == HOME or (ending.end, ending.error) == (CallEnd.OK, None)


def leave_room_in_the_epoch(rare: CrashLab) -> None:
    """Commit until no epoch is about to end: its END would pass the same points before the test's commit."""
    while True:
        with rare.lab.transaction(HOME) as attempt:
            ending = attempt.finish()
        assert ending.csn is not None, ending
        if sequence_of(Csn(ending.csn)) < EPOCH_LIMIT // 2:
            return


@pytest.mark.parametrize("point", OF_RAISE)
def test_while_a_lost_reply_is_resolved(rare: CrashLab, point: str) -> None:
    """The commit is in the log although the home never knew: the home finds it there."""
    leave_room_in_the_epoch(rare)
    ending = rare.dark_at(HOME, point, also=LOSES_REPLIES)
    assert ending.end is CallEnd.OK


@pytest.mark.parametrize("point", OF_ROLLOVER)
def test_at_the_end_of_an_epoch(rare: CrashLab, point: str) -> None:
    """Commit until the home closes an epoch; the epoch ends once, also if another replica closes it."""
    lab = rare.lab
    hits = lab.gates.hits(HOME, point)
    with contextlib.ExitStack() as clients:
        with rare.still(), lab.gates.open(HOME, point):
            while True:
                attempt = clients.enter_context(lab.transaction(HOME))
                told = lab.beside(attempt)
                eventually(lambda told=told: told.done() or lab.gates.hits(HOME, point) > hits)  # type: ignore[misc]
                if lab.gates.hits(HOME, point) > hits:
                    break
            wrong = rare.cut_power(HOME)
        lab.cluster.start(HOME)
        ending = told.result()
    assert wrong == []
    lab.require_settled(attempt, ending.csn)


@pytest.mark.scenario("S51", "S52")
@pytest.mark.parametrize("rows", [LARGE_ROWS, ROWS[0]], ids=["large", "small"])
def test_of_all_replicas_at_the_answer(crash: CrashLab, rows: int, tell: Tell) -> None:
    """All lose their power when a client has its answer: the commit is on as many platters as promised."""
    with crash.lab.transaction(HOME, rows=rows) as attempt, crash.still():
        ending = attempt.finish()
        assert (ending.end, ending.error) == (CallEnd.OK, None)
        holders = crash.require_copies(attempt.tid)
    tell(f"{attempt.tid} was acknowledged and on the platters of {', '.join(holders)}")
    crash.lab.require_settled(attempt, ending.csn)


@pytest.mark.parametrize("point", OF_LANDINGS)
def test_of_all_replicas_with_rows_that_landed(crash: CrashLab, point: str) -> None:
    """All lose their power when rows are answered and their commit is held, or just done: they come once."""
    lab, numbers = crash.lab, list(range(50))
    table = f"landed_{point.rpartition('.')[2]}"
    rows = pa.table({"n": numbers}, schema=pa.schema([("n", pa.int64())]))
    with lab.cluster.connect(HOME) as db:
        db.create_table(table, rows.schema, properties={"landing": "on"})
        with crash.still():
            with lab.gates.open(HOME, point):
                assert db.land(table, rows).rows == len(numbers)
                lab.gates.await_hit(HOME, point)
                wrong = crash.cut_power(*REPLICAS)
            lab.cluster.up()
    assert wrong == []
    with lab.cluster.connect() as db:
        eventually(lambda: db.read(table).num_rows >= len(numbers), what="the rows that landed")
        assert sorted(db.read(table)["n"].to_pylist()) == numbers
