"""Planted bugs, which the tests of this folder must find.

An agent that forgets an fsync is made by a kernel that says "done" and does nothing; its code is unchanged.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.lab import HOME, PEER, REPLICAS, CrashLab, crash_lab
from tests.chaos.supervisor import Call, Trap
from tests.support.clusters.cluster import ClusterFactory
from tests.support.faults.lab import BYSTANDER, LARGE_ROWS
from workloads.history import CallEnd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def of_files(call: Call) -> bool:
    """Return whether a call is about a part's own file, which still has its temporary name."""
    return "/data/tmp/" in call.subject


def of_packs(call: Call) -> bool:
    """Return whether a call is about a pack."""
    return call.subject.endswith(".pack")


def of_folders(call: Call) -> bool:
    """Return whether a call is about a folder, or a pack, whose fsync writes the names of others too."""
    return Path(call.subject).is_dir() or of_packs(call)


def of_the_catalog(call: Call) -> bool:
    """Return whether a call is about SQLite's write-ahead log."""
    return call.subject.endswith("catalog.db-wal")


def plant(
    bug: Callable[[CrashLab], None], factory: ClusterFactory, folder: Path, *, program: str | None = None
) -> None:
    """Run the steps that find a bug; after that the cluster ends without its final checks."""
    with crash_lab(factory, folder, supervised=(HOME, PEER), disks_of=REPLICAS, program=program) as crash:
        bug(crash)


def forget_fsyncs(crash: CrashLab, forgotten: Callable[[Call], bool]) -> None:
    """Commit while home and peer skip one kind of fsync; cut the power after the acknowledgement."""
    trap = functools.partial(Trap, "fsync", 1, 0, lasting=True, about=forgotten)
    with (
        crash.lab.transaction(HOME, rows=LARGE_ROWS, filled=False) as attempt,
        crash.still(),
        crash.supervisors[HOME].armed(trap()),
        crash.supervisors[PEER].armed(trap()),
    ):
        assert attempt.finish(filled=False).end is CallEnd.OK
        crash.require_copies(attempt.tid)


def acknowledge_early(crash: CrashLab) -> None:
    """Commit while the peers are stopped; cut the power after the acknowledgement."""
    with crash.lab.transaction(HOME) as attempt, crash.still():
        for peer in (PEER, BYSTANDER):
            crash.lab.cluster.kill(peer, signal.SIGSTOP)
        assert attempt.finish().end is CallEnd.OK
        crash.require_copies(attempt.tid)


def sweep_nothing(crash: CrashLab) -> None:
    """Kill the home before a pack is flushed; its start removes no file."""
    killed = Trap("fsync", 1, about=of_packs)
    with crash.lab.transaction(HOME) as attempt:
        with crash.lab.still(), crash.supervisors[HOME].armed(killed):
            told = crash.lab.beside(attempt)
            crash.lab.await_death(HOME)
        with crash.supervisors[HOME].armed(Trap("rename", 1, 0, lasting=True)):
            crash.lab.cluster.start(HOME)
        crash.lab.require_settled(attempt, told.result().csn)


@pytest.mark.scenario("S81")
@pytest.mark.parametrize(
    ("forgotten", "found"),
    [
        (of_files, r"is held, and r1-\d+-\d+\.parquet has 0 of its \d+ bytes"),
        # Whether their rows are durable by then is left to chance.
        (of_packs, r"r\d-\d+-\d+\.pack has 0 of its \d+ bytes|acknowledged, and only \['r3'\] had it"),
        (of_folders, r"is held, and r1-\d+-\d+\.parquet is not there"),
        (of_the_catalog, r"no row names parts/\d+/r1-\d+-\d+\.parquet"),
    ],
    ids=["file", "pack", "folder", "catalog"],
)
def test_an_fsync_is_forgotten(
    module_cluster: ClusterFactory, tmp_path: Path, forgotten: Callable[[Call], bool], found: str
) -> None:
    """The power cut finds a forgotten fsync."""
    bug = functools.partial(forget_fsyncs, forgotten=forgotten)
    with pytest.raises(AssertionError, match=found):
        plant(bug, module_cluster, tmp_path)


@pytest.mark.scenario("S81")
def test_a_commit_is_acknowledged_before_its_copies(module_cluster: ClusterFactory, tmp_path: Path) -> None:
    """The home waits for no peer: the power cut finds one copy too few."""
    with pytest.raises(AssertionError, match=r"was acknowledged, and only \['r1'\] had it"):
        plant(acknowledge_early, module_cluster, tmp_path, program="tests.chaos.planted_agent")


def test_a_start_leaves_files_behind(module_cluster: ClusterFactory, tmp_path: Path) -> None:
    """A replica that is killed while it has a new file comes back with a file that no row names."""
    with pytest.raises(AssertionError, match=r"file packs/.*\.pack that no row names"):
        plant(sweep_nothing, module_cluster, tmp_path)
