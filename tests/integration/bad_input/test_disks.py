"""Disks that run full, at the home and at a peer: DiskFullError, the space is given back, then all works.

With root rights two replicas have a file system of their own that is really full. Without the right to mount,
the tests use the fault kind ``enospc`` and a limit on the size of files.
"""

from __future__ import annotations

import itertools
import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import ClusterFactory
from tests.support.faults import ability
from tests.support.faults.lab import Gates
from tests.support.faults.refusals import ROWS, Addresses, Ground, check_message, check_state, http
from tests.support.faults.small_disk import DISK_BYTES, NO_DISK, SmallDisk
from tests.support.histories.evidence import leftovers
from tests.support.waiting import eventually
from tidelock.client import Decision, TransactionState
from tidelock.cluster import LocalCluster
from tidelock.errors import DiskFullError, NotEnoughReplicasError

MIB = 1 << 20
HOME, PEER = "r1", "r3"
#: Where a write of the home can find no room.
POINTS = ("partfs.write.before", "partfs.fsync.before", "agent.catalog.before")
NUMBERS = itertools.count(1)
BLOBS = pa.schema([("k", pa.int64()), ("blob", pa.binary())])


class Disks:
    """A cluster whose home and one of whose peers can be given a full disk."""

    def __init__(self, local: LocalCluster, gates: Gates, small: dict[str, SmallDisk]) -> None:
        self.local, self.gates, self._small = local, gates, small

    def small(self, replica: str) -> SmallDisk:
        """The small file system of a replica; the test is left out where there is none."""
        if replica not in self._small:
            ability.require(NO_DISK)
        return self._small[replica]

    def require_clean(self) -> None:
        """On no replica anything is left that no committed transaction needs (I13)."""
        for replica in self.local.replicas:
            folder = self.local.data_dir(replica)
            eventually(lambda at=folder: not leftovers(at), what=f"nothing left on {replica}")  # type: ignore[misc]


@pytest.fixture(scope="module")
def disks(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disks]:
    """The cluster."""
    gates = Gates(tmp_path_factory.mktemp("gates"), {HOME: dict.fromkeys(POINTS, "enospc")})
    local = module_cluster(
        settings={"commit_timeout_s": 4, "undecided_check_s": 1, "session_timeout_s": 4},
        environment_of={HOME: gates.environment(HOME)},
        start=False,
    )
    small = {replica: SmallDisk(local.data_dir(replica)) for replica in (HOME, PEER)}
    mounted = {replica: disk for replica, disk in small.items() if disk.mounted()}
    try:
        local.up()
        yield Disks(local, gates, mounted)
    finally:
        for replica in local.replicas:
            local.kill(replica)
        for disk in mounted.values():
            disk.unmount()


@pytest.fixture
def ground(disks: Disks) -> Iterator[Ground]:
    """A table of this test, and another one for large rows; all transactions are begun at the home."""
    name = f"disk_{next(NUMBERS)}"
    with disks.local.connect(HOME) as db:
        ground = Ground(disks.local, db, name)
        db.create_table(f"{name}_blobs", BLOBS)
        ground.check_intact()  # all replicas have applied the tables: without room they would not
        yield ground
    disks.require_clean()


def blobs(count: int) -> pa.Table:
    """Rows of 1 MiB that cannot be compressed."""
    return pa.table({"k": range(count), "blob": [os.urandom(MIB) for _ in range(count)]}, schema=BLOBS)


@pytest.mark.slow
def test_large_insert_into_a_small_disk(disks: Disks, ground: Ground) -> None:
    """Rows that do not fit are refused while they come in; what was written of them is given back at once."""
    disk = disks.small(HOME)
    room = disk.room
    error = ground.refuses_statement(
        lambda tx: tx.insert(f"{ground.table}_blobs", blobs(DISK_BYTES // MIB + 4)),
        *(DiskFullError, f"replica {HOME}", "in reserve (disk_reserve_bytes)", "free space there"),
    )
    assert error.http_status == 507
    eventually(lambda: disk.room > room - MIB, what="the space given back")
    assert ground.db.insert(f"{ground.table}_blobs", blobs(2), wait="all").csn is not None
    assert ground.db.read(f"{ground.table}_blobs", columns=["k"]).num_rows == 2


@pytest.mark.scenario("S55")
def test_commit_on_a_full_disk(disks: Disks, ground: Ground) -> None:
    """Small rows meet the disk at the commit: refused, rolled back; reads and other homes go on meanwhile."""
    tx = ground.db.begin(fresh=True)
    tx.insert(ground.table, ROWS)
    with ground.db.snapshot() as snap, disks.small(HOME).full():
        with pytest.raises(DiskFullError) as caught:
            tx.commit()
        check_message(caught.value, DiskFullError, ["free space"])
        check_state(tx, TransactionState.ROLLED_BACK)
        assert snap.read(ground.table).num_rows == ground.rows
        with disks.local.connect("r2") as other:
            csn = other.insert(ground.table, ROWS).csn or 0
            assert other.outcome(tx.tid).decision is Decision.ABORTED
        held_back = eventually(lambda: _waits(disks.local, HOME))
        assert held_back["csn"] == csn
    ground.rows += ROWS.num_rows
    ground.db.snapshot(min_csn=csn).close()
    ground.check_intact()


def _waits(local: LocalCluster, replica: str) -> dict[str, object]:
    waiting: dict[str, object] = http("GET", f"{Addresses.of(local, replica).api}/status").json["waiting_for"]
    return waiting


def test_peer_with_a_full_disk(disks: Disks, ground: Ground) -> None:
    """Two other disks are enough; with one alone a commit is refused; with room again the peer catches up."""
    with disks.small(PEER).full():
        csn = ground.db.insert(ground.table, ROWS).csn or 0
        ground.rows += ROWS.num_rows
        waiting = eventually(lambda: _waits(disks.local, PEER))
        assert waiting["csn"] == csn  # which part of which transaction, and who has it
        assert set(waiting) >= {"tid", "part", "reason"}
        disks.local.stop("r2")
        tx = ground.db.begin(fresh=True)
        tx.insert(ground.table, ROWS)
        with pytest.raises(NotEnoughReplicasError) as caught:
            tx.commit(timeout_s=30)
        check_message(
            *(caught.value, NotEnoughReplicasError),
            ["got 1 of 2 durable copies", PEER, "rolled back", "start these replicas"],
        )
        check_state(tx, TransactionState.ROLLED_BACK)
    disks.local.start("r2")
    ground.check_intact()


@pytest.mark.scenario("S55")
@pytest.mark.parametrize("point", POINTS)
def test_no_room_at_a_step_of_the_home(disks: Disks, ground: Ground, point: str) -> None:
    """Wherever the home finds no room: the commit is refused by that name, and nothing of it is left."""
    tx = ground.db.begin(fresh=True)
    tx.insert(ground.table, ROWS)
    with disks.gates.open(HOME, point), pytest.raises(DiskFullError, match="free space") as caught:
        tx.commit()
    assert caught.value.http_status == 507
    check_state(tx, TransactionState.ROLLED_BACK)
    ground.check_intact()
    assert ground.db.outcome(tx.tid).decision is Decision.ABORTED


def test_limit_on_the_size_of_files(disks: Disks, ground: Ground) -> None:
    """A file that may not grow is a full disk too, and the agent outlives the signal of the system."""
    pid = disks.local.pid(HOME)
    assert pid is not None
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    catalogs = disks.local.data_dir(HOME).glob("catalog.db*")
    limit = max(file.stat().st_size for file in catalogs) + 2 * MIB
    with ExitStack() as restored:
        restored.callback(resource.prlimit, pid, resource.RLIMIT_FSIZE, before)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, before[1]))
        tx = ground.db.begin()
        with pytest.raises(DiskFullError) as caught:
            tx.insert(f"{ground.table}_blobs", blobs(limit // MIB + 2))
        check_message(caught.value, DiskFullError, ["no room on the disk", "File too large"])
        ground.check_rollback_only(tx)
    ground.check_intact()
