"""Disks that do not fail in a plain way: read-only, slow, with flipped bits in a catalog, or out of the past.

One replica of three has such a disk; the others have to go on, and it has to come back or to say why not.
"""

from __future__ import annotations

import contextlib
import functools
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from tests.chaos import disks
from tests.chaos.disks import Disk
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.disks import lose_disk
from tests.support.faults import ability
from tests.support.faults.tampering import flip_byte
from tests.support.histories.evidence import alive, require_clean_audit, verify
from tests.support.histories.workload import Workload
from tests.support.waiting import eventually
from tidelock.cluster import LocalCluster
from tidelock.errors import TidelockError, UnavailableError
from workloads.agents import ask

REPLICAS: Final = ("r1", "r2", "r3")
ODD: Final = "r3"
SCHEMA: Final = pa.schema([("n", pa.int64())])
#: Each flush of the slow disk takes so long; a commit has several.
FLUSH_US: Final = 2_000_000
FLIPS: Final = 12
#: A replica that is stuck in its start is struck before it serves.
START_TIMEOUT_S: Final = 240
#: Settings with which rot of a catalog is found soon: replicas compare what they show.
COMPARING: Final = QUICK | {"compare_interval_s": 1.0, "tick_interval_s": 0.4, "horizon_interval_s": 0.5}
#: The folders of rows; beside them are the files of the catalog, and small ones.
PARTS: Final = ("parts", "packs", "trash")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def insert(local: LocalCluster, count: int, *homes: str) -> int:
    """Commit single rows at these homes in turn; return the last CSN. A refusal is a failed test."""
    last = 0
    for number in range(count):
        with local.connect(homes[number % len(homes)]) as db:
            last = max(last, db.insert("t", pa.table({"n": [number]}, SCHEMA)).csn or 0)
    return last


def shown(local: LocalCluster, replica: str, csn: int) -> list[tuple[object, ...]]:
    """Return the parts of the table that a replica shows at a CSN, and how many rows it reads there."""
    parts = ask(local, replica, f"/parts?csn={csn}&table=default.t")
    facts = sorted((part["part"], part["path"], part["rows"], part["checksum"]) for part in parts)
    with local.connect(replica) as db, db.snapshot(csn=csn) as snap:
        return [*facts, ("rows", sum(snap.read("t")["n"].to_pylist()))]


def agrees(local: LocalCluster, csn: int) -> bool:
    """Return whether the odd replica serves, and shows what r1 shows."""
    try:
        state = ask(local, ODD, "/status")["state"]
        return state == "serving" and shown(local, ODD, csn) == shown(local, "r1", csn)
    except TidelockError:
        return False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk of its own for one replica."""
    ability.require(disks.unable())
    made = Disk(tmp_path / "odd", tmp_path / "mounted")
    yield made
    made.close()


@pytest.mark.scenario("S56")
def test_a_file_system_that_becomes_read_only(disk: Disk, cluster: ClusterFactory) -> None:
    """The others commit, it acknowledges nothing and shows no wrong row; with a sound disk it catches up."""
    local = cluster(settings=QUICK, start=False)
    local.data_dir(ODD).parent.mkdir(parents=True, exist_ok=True)
    local.data_dir(ODD).symlink_to(disk.at / "data", target_is_directory=True)
    (disk.at / "data").mkdir()
    local.up()
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
        csn = db.insert("t", pa.table({"n": [7]}, SCHEMA), wait="all").csn or 0
    try:
        disk.abort()
        with pytest.raises(OSError, match="Read-only"):
            (disk.at / "probe").touch()
        last = insert(local, 20, "r1", "r2")
        with contextlib.suppress(TidelockError), local.connect(ODD) as db, db.snapshot(csn=csn) as snap:
            assert snap.read("t")["n"].to_pylist() == [7]
        with local.connect(ODD) as db, pytest.raises(TidelockError):
            db.insert("t", pa.table({"n": [8]}, SCHEMA))
        said = [local.log(replica).read_text(encoding="utf-8") for replica in REPLICAS]
        assert any("Read-only file system" in log for log in said)
    finally:
        local.kill(ODD)
    disk.again()
    local.start(ODD)
    eventually(functools.partial(agrees, local, last), what="its return")
    insert(local, 3, ODD)
    require_clean_audit(local, deep=True)


@contextlib.contextmanager
def slow_flushes(pid: int) -> Iterator[None]:
    """Let each flush of a process take long inside the block."""
    if (strace := shutil.which("strace")) is None:
        ability.require("there is no strace, which makes flushes slow")
    assert strace is not None
    calls = "fsync,fdatasync,sync_file_range"
    command = [strace, "-f", "-q", "-e", f"trace={calls}", "-e", f"inject={calls}:delay_enter={FLUSH_US}"]
    with subprocess.Popen(
        [*command, "-p", str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as tracer:
        assert tracer.stderr is not None
        try:
            # A first flush is told as soon as it is delayed: the fault has happened.
            yield
            assert tracer.poll() is None, tracer.stderr.read()
        finally:
            tracer.send_signal(signal.SIGINT)
            _, told = tracer.communicate(timeout=60)
    assert b"DELAYED" in told, told


@pytest.mark.scenario("S60")
def test_commits_go_on_beside_a_slow_disk(cluster: ClusterFactory, tmp_path: Path) -> None:
    """Its session lives on, the others do not wait for it, and it goes on when the disk is quick again."""
    # A busy machine holds up an agent whose calls are traced: that alone must not end its session.
    patient = {"session_timeout_s": 10, "commit_timeout_s": 20}
    local = cluster(settings=QUICK | patient)
    with Workload(local, tmp_path, "slow", writers=(*REPLICAS, "r1", "r2"), timeout_s=30.0) as load:
        load.more_commits(5, *REPLICAS)
        pid = local.pid(ODD)
        assert pid is not None
        with slow_flushes(pid):
            for _ in range(5):
                load.more_commits(20, "r1", "r2")
                assert alive(local, "r1", ODD)
        load.more_commits(5, *REPLICAS)
    verify(load, commits=120)


@pytest.mark.scenario("S58")
def test_a_flipped_bit_in_any_file_that_is_no_part(cluster: ClusterFactory, fresh_seed: int) -> None:
    """The start is refused with the reason, or the replica shows in the end what the others show."""
    chosen = random.Random(fresh_seed)
    local = cluster(settings=COMPARING)
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
    csn = insert(local, 30, *REPLICAS)
    for number in range(FLIPS):
        csn = insert(local, 3, "r1", "r2")
        eventually(functools.partial(agrees, local, csn), what=f"{ODD} before flip {number}")
        local.kill(ODD)
        file = chosen.choice(metadata(local.data_dir(ODD)))
        before = file.read_bytes()
        flip_byte(file, position := chosen.randrange(len(before)))
        try:
            local.start(ODD)
        except UnavailableError:  # which has the last words of the agent
            lose_disk(local, ODD)  # the operator's answer to a damaged catalog: an empty disk, which clones
            local.start(ODD)
        csn = insert(local, 3, "r1", "r2")
        eventually(
            functools.partial(agrees, local, csn),
            what=f"{ODD} behind a flip of {file.name} at {position}",
        )
    insert(local, 3, *REPLICAS)
    with local.connect() as db:
        found = db.audit(deep=True).findings
    # A catalog that has forgotten a file leaves it on the disk: space, and no row.
    assert {(finding.fault, finding.replicas) for finding in found} <= {("surplus_file", (ODD,))}, found


def metadata(data_dir: Path) -> list[Path]:
    """Return the files of a data directory that hold no rows, and have bytes."""
    return sorted(
        path
        for path in data_dir.rglob("*")
        if path.is_file() and path.relative_to(data_dir).parts[0] not in PARTS and path.stat().st_size
    )


@pytest.mark.scenario("S46")
@pytest.mark.parametrize("kept", [10_000, 10], ids=["the log is whole", "the log was cut"])
def test_an_old_disk_comes_back(cluster: ClusterFactory, tmp_path: Path, kept: int) -> None:
    """The data folder of long ago never shows old rows as new ones; in the end its replica has a new state.

    Parts that it lacks were collected meanwhile. With a whole log it stands still at the first of them until
    it is struck, and clones. Where the log was cut it does not start, and says what to do.
    """
    bounds = {"log_keep_records": kept, "max_records": max(kept, 60), "strike_timeout_s": 15}
    local = cluster(settings=COMPARING | bounds | {"history_retention_s": 1, "blocked_after_s": 1})
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
        db.insert("t", pa.table({"n": [1]}, SCHEMA), wait="all")
        local.stop(ODD)
        shutil.copytree(local.data_dir(ODD), tmp_path / "old")
        local.start(ODD)
        db.truncate("t", wait="all")
    passed = insert(local, 40, *REPLICAS)
    if kept < passed:
        eventually(lambda: ask(local, "r1", "/log?from_csn=0")[0]["csn"] > passed // 2, what="a shorter log")
    local.stop(ODD)
    shutil.rmtree(local.data_dir(ODD))
    shutil.copytree(tmp_path / "old", local.data_dir(ODD))
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(local.start, ODD, timeout_s=START_TIMEOUT_S)
        if kept < passed:
            with pytest.raises(UnavailableError, match="clone it from another replica"):
                starting.result()
            lose_disk(local, ODD)
            local.start(ODD)
        while not starting.done():
            insert(local, 5, "r1", "r2")
        assert kept < passed or starting.result() is None
    last = insert(local, 6, *REPLICAS)
    eventually(functools.partial(agrees, local, last), what="its return")
    require_clean_audit(local, deep=True)
