"""Crashes of one commit, a few of each kind; the slow tests of this folder try all of them (issue 3)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

import pytest

from tests.chaos import disks
from tests.chaos.lab import HOME, REPLICAS, CrashLab, crash_lab
from tests.chaos.supervisor import Trap
from tests.support.clusters.cluster import ClusterFactory
from tests.support.faults import ability
from tidelock.errors import DiskFullError, UnavailableError
from workloads.history import CallEnd

#: The point at which the home's power is cut: the pack is stored, and no answer was sent.
CUT_AT: Final = "agent.pack.after"


@pytest.fixture(scope="module")
def crash(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashLab]:
    """One cluster for all crashes, on disks of its own if possible; its history is checked at the end."""
    with crash_lab(
        module_cluster,
        tmp_path_factory.mktemp("crashes"),
        supervised=[HOME],
        disks_of=[] if disks.unable() else REPLICAS,
        faults={HOME: {CUT_AT: "pause"}},
    ) as crash:
        yield crash


@pytest.mark.scenario("S53")
@pytest.mark.parametrize(
    ("kind", "at"),
    [("openat", 1), ("fsync", 2), ("sendto", 5)],
)
@pytest.mark.slow
def test_the_home_is_killed_at_a_call(crash: CrashLab, kind: str, at: int) -> None:
    """The home comes back with or without the commit, as the client's answer says; nothing is left over."""
    trap = Trap(kind, at)
    crash.strike(HOME, trap)
    assert trap.hit is not None


@pytest.mark.scenario("S54")
def test_a_failed_fsync_is_never_acknowledged(crash: CrashLab) -> None:
    """After EIO for the bytes of a part the transaction is refused and its file deleted."""
    trap = Trap("fsync", 1, errno.EIO, about=lambda call: "/data/tmp/" in call.subject)
    ending = crash.strike(HOME, trap)
    assert trap.hit is not None
    assert (ending.end, type(ending.error)) == (CallEnd.FAIL, UnavailableError)


@pytest.mark.scenario("S55")
def test_a_full_disk_is_told(crash: CrashLab) -> None:
    """After ENOSPC the transaction is refused with the reason, and leaves nothing."""
    trap = Trap("write", 2, errno.ENOSPC, lasting=True, about=crash.on_disk)
    ending = crash.strike(HOME, trap)
    assert trap.hit is not None
    assert (ending.end, type(ending.error)) == (CallEnd.FAIL, DiskFullError)


def test_the_power_of_the_home_is_cut(crash: CrashLab) -> None:
    """The home's platter has all parts of its catalog; the home comes back without the commit."""
    ability.require(disks.unable())
    assert crash.dark_at(HOME, CUT_AT).end is CallEnd.FAIL


@pytest.mark.slow
def test_the_power_of_all_is_cut_at_the_answer(crash: CrashLab) -> None:
    """An acknowledged commit is complete on as many platters as were promised."""
    ability.require(disks.unable())
    with crash.lab.transaction(HOME) as attempt, crash.still():
        ending = attempt.finish()
        assert (ending.end, ending.error) == (CallEnd.OK, None)
        crash.require_copies(attempt.tid)
    crash.lab.require_settled(attempt, ending.csn)
