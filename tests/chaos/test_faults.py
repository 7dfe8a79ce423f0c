"""Each fault of the chaos runner against real processes: injected, proven, healed, and commits go on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
import pytest

from chaos.faults import ALL
from chaos.faults.clocks.clock_wrong import ClockWrong
from chaos.faults.disks.pack_flipped import PackFlipped
from chaos.faults.fault import Aim, Fault
from chaos.faults.network.cut_from_peers import CutFromPeers
from chaos.faults.network.one_way_cut import OneWayCut
from chaos.faults.network.pair_cut import PairCut
from chaos.faults.zookeeper.session_expired import SessionExpired
from chaos.faults.zookeeper.zookeeper_set_back import ZooKeeperSetBack
from chaos.record.journal import Journal
from chaos.watching.seeing import status
from chaos.watching.waiting import STEP_TIMEOUT_S, comes_true
from chaos.world import World
from tests.support.clusters.cluster import QUICK
from tests.support.faults import ability
from tidelock.errors import TidelockError
from tidelock.testing import Cluster, commands
from tidelock.testing.node import Node

SCHEMA: Final = pa.schema([("n", pa.int64())])
SETTINGS: Final = QUICK | {
    "check_invariants": True,
    "clock_check_interval_s": 1,
    "compaction": False,
    "disk_reserve_bytes": 4 << 20,
    # So there are parts in packs, and parts in files of their own.
    "inline_part_bytes_max": 16 << 10,
    "scrub_interval_s": 1,
    "compare_interval_s": 2,
}
DISK_BYTES: Final = 256 << 20
#: Between two tries of a client that was refused, in seconds.
PAUSE_S: Final = 0.2
#: How long an effect may need to be seen while a fault acts, in seconds; then the fault is healed.
PATIENCE_S: Final = 10.0
#: How long the audit of one replica may take, in seconds; it takes one.
AUDIT_TIMEOUT_S: Final = 120.0
#: How long damage is not noticed where nobody reads, in seconds.
QUIET_S: Final = 3.0
#: Faults that every run of the tests has; they need some seconds together.
OFTEN: Final = (CutFromPeers, SessionExpired, ClockWrong)
#: One has a test of its own below, and one needs sessions of Spark, as test_workloads.py has them.
KINDS: Final = [
    pytest.param(fault, id=fault.kind, marks=() if fault in OFTEN else pytest.mark.slow)
    for fault in sorted(ALL, key=lambda fault: fault not in OFTEN)
    if fault is not ZooKeeperSetBack and fault.aim is not Aim.CLIENT
]

pytestmark = pytest.mark.timeout(900)


class Load:
    """A client that inserts small and large parts, one after the other, during the `with` block.

    Args:
        world: The run; its journal gets the calls.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        numbers = random.Random(0)
        while not self._ended.is_set():
            # A client of its own each time: members come and go.
            try:
                with self._world.cluster.connect(timeout_s=5.0) as db:
                    for rows in (10, 10, 5_000):
                        numbers_of = [numbers.getrandbits(60) for _ in range(rows)]
                        db.insert("t", pa.table({"n": numbers_of}, SCHEMA))
                        self._world.journal.note("call", f="write", end="ok")
            except TidelockError as error:
                self._world.journal.note("call", f="write", end="fail", error=repr(error))
                self._ended.wait(PAUSE_S)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[World]:
    """Yield a run on a cluster of its own, whose nodes have networks and disks of their own, under load."""
    ability.require(commands.lack())
    made = Cluster.processes(
        folder / "cluster",
        zookeepers=3,
        settings=SETTINGS,
        isolated=True,
        disk_bytes=DISK_BYTES,
    )
    with made as cluster, Journal(folder / "journal") as journal:
        world = World(cluster, folder, journal, seed=1, copies=2)
        with cluster.connect() as db:
            db.create_table("t", SCHEMA)
        with Load(world):
            yield world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One run for all faults but the last; at its end an audit of all replicas finds nothing."""
    with running(tmp_path_factory.mktemp("faults")) as world:
        yield world
        with world.cluster.connect() as db:
            report = db.audit(deep=True, timeout_s=AUDIT_TIMEOUT_S)
        for silent in report.silent:
            tell_where(world.cluster.node(silent))
        assert report.clean, report


@pytest.mark.parametrize("fault", KINDS)
def test_a_fault_is_proven_and_healed(world: World, fault: type[Fault]) -> None:
    """Its effect is seen, all replicas serve afterwards, and a commit reaches all of them."""
    happens(world, fault, random.Random(fault.kind))


@pytest.mark.parametrize(
    "fault",
    [CutFromPeers, *(pytest.param(fault, marks=pytest.mark.slow) for fault in (PairCut, OneWayCut))],
    ids=lambda fault: fault.kind,
)
@pytest.mark.scenario("S47")
def test_replicas_that_are_cut_off_hold_nobody_else_up(world: World, fault: type[Fault]) -> None:
    """An untouched replica commits meanwhile; one that cannot fetch stays where it is, and comes after it."""
    ability.require(fault.lack())
    cluster = world.cluster
    first, second, untouched = cluster.replicas
    targets = [first, second] if fault.aim is Aim.PAIR else [first]
    rows = pa.table({"n": list(range(5_000))}, SCHEMA)
    with fault().inject(world, targets, random.Random(fault.kind)) as proof:
        with cluster.connect(untouched) as db:
            csn = db.insert("t", rows).csn
        assert proof.seen()
        if fault is CutFromPeers:
            reached = status(world, first)
            assert reached is not None
            assert reached["snapshot_csn"] < csn
    total = "select count(*) as rows, sum(n) as sum from t"
    sums = []
    for replica in cluster.replicas:
        with cluster.connect(replica) as db, db.snapshot(csn=csn) as snap:
            sums.append(snap.sql(total).to_pylist())
    assert sums == [sums[0]] * len(cluster.replicas)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2], ids=["the tree is made again", "the newest state comes back"])
def test_a_zookeeper_that_was_set_back_is_found_and_brought_back(tmp_path: Path, seed: int) -> None:
    """All replicas stop or suspend themselves; both ways of the handbook lead back."""
    with running(tmp_path) as world:
        happens(world, ZooKeeperSetBack, random.Random(seed))


@pytest.mark.slow
def test_rot_that_nobody_reads_is_found_by_the_audit_of_the_runner(tmp_path: Path) -> None:
    """No reader comes, and no scrubber: the runner asks for an audit, and the part is mended."""
    settings = SETTINGS | {"scrub_bytes_per_s": 0}
    with (
        Cluster.processes(tmp_path / "cluster", settings=settings) as cluster,
        Journal(tmp_path / "journal") as journal,
    ):
        world = World(cluster, tmp_path, journal, seed=1, copies=2)
        with cluster.connect() as db:
            db.create_table("t", SCHEMA)
            db.insert("t", pa.table({"n": [1]}, SCHEMA), wait="all")
        with PackFlipped().inject(world, [cluster.replicas[0]], random.Random(1)) as proof:
            assert not comes_true(proof.seen, QUIET_S)
        assert proof.seen()


def tell_where(replica: Node) -> None:
    """Print where an agent stands that gives no answer: its tasks and its threads."""
    before = len(replica.log())
    if (pid := replica.pid) is not None:
        os.kill(pid, signal.SIGUSR1)
        comes_true(lambda: '"event": "tasks"' in replica.log()[before:], PATIENCE_S)


def happens(world: World, fault: type[Fault], chosen: random.Random) -> None:
    """Let a fault happen until its effect is seen, at the latest when it is healed."""
    ability.require(fault.lack())
    cluster = world.cluster
    targets = {
        Aim.REPLICA: chosen.sample(cluster.replicas, 1),
        Aim.PAIR: chosen.sample(cluster.replicas, 2),
        Aim.ZOOKEEPER: chosen.sample(cluster.zookeepers, 1),
        Aim.ALL: [*cluster.replicas, *cluster.zookeepers],
    }[fault.aim]
    with fault().inject(world, targets, chosen) as proof:
        comes_true(proof.seen, fault.lasts_s[1] + PATIENCE_S)  # some are seen only when it is healed
    assert proof.seen(), f"nothing shows an effect of {fault.kind} at {targets}"
    for replica in cluster.replicas:
        cluster.node(replica).wait_ready(STEP_TIMEOUT_S)
    with cluster.connect() as db:
        db.insert("t", pa.table({"n": [1]}, SCHEMA), wait="all")
