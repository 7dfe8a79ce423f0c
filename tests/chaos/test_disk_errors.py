"""EIO from the n-th fsync and ENOSPC from the n-th write of one commit, for the n of `supervisor.chosen`.

The call is not carried out, so the bytes that it was to flush stay unflushed. After a failed fsync the agent
refuses the commit, stops, or does the work again. If the commit was acknowledged all the same, the power of
all replicas is cut at once, and the commit must be on as many platters as were promised. After a refusal the
victim is killed, and the refused commit stays refused.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.chaos.lab import HOME, PEER, REPLICAS, CrashLab, crash_lab
from tests.chaos.supervisor import Call, Trap, census, chosen
from tests.support.clusters.cluster import ClusterFactory
from tests.support.telling import Tell
from tidelock.errors import DiskFullError, NotCommittedError, UnavailableError
from workloads.history import CallEnd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def crash(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashLab]:
    """One cluster, each replica on a disk of its own, for all errors."""
    folder = tmp_path_factory.mktemp("errors")
    with crash_lab(module_cluster, folder, supervised=(HOME, PEER), disks_of=REPLICAS) as crash:
        yield crash


@pytest.mark.scenario("S54", "S55")
@pytest.mark.parametrize("victim", [HOME, PEER], ids=["home", "peer"])
@pytest.mark.parametrize(
    ("kind", "error", "lasting"),
    [("fsync", errno.EIO, False), ("write", errno.ENOSPC, True)],
    ids=["fsync-EIO", "write-ENOSPC"],
)
def test_an_error_at_every_call(
    crash: CrashLab,
    victim: str,
    kind: str,
    error: int,
    lasting: bool,
    fresh_seed: int,
    tell: Tell,
) -> None:
    """Commits are refused with the reason, or have durable copies; a peer's error delays no commit."""
    counted = Trap(kind, 0, about=crash.on_disk)
    crash.strike(victim, counted)
    hits: dict[CallEnd, list[Call]] = {CallEnd.OK: [], CallEnd.FAIL: []}
    for at in chosen(counted.passed, fresh_seed):
        trap = Trap(kind, at, error, lasting=lasting, about=crash.on_disk)
        ending = crash.strike(victim, trap, cut=kind == "fsync")
        if ending.end is not CallEnd.OK:
            assert victim == HOME
            assert isinstance(ending.error, DiskFullError | NotCommittedError | UnavailableError)
        if trap.hit is not None:
            hits[ending.end].append(trap.hit)
        elif at > len(counted.passed):
            break
    assert any(hits.values())
    tell(
        f"{errno.errorcode[error]}: refused after {census(hits[CallEnd.FAIL]) or 'none'}; "
        f"committed after {census(hits[CallEnd.OK]) or 'none'}"
    )
