"""SIGKILL at every n-th openat, write, fsync, rename, unlink, ftruncate and sendto of one commit (issue 3).

The victim is the home or a peer; the commit inserts into two tables, and the part of one of them is a file
of its own. A first commit tells how many calls of a kind there are; then one commit after the other is hit at
the next of them. Each time the victim comes back, the client was told the truth, the transaction is there on
all replicas or on none, and nothing is left over. A kill that did not happen does not count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.chaos import seccomp
from tests.chaos.lab import HOME, PEER, CrashLab, crash_lab
from tests.chaos.supervisor import Trap
from tests.support.cluster import ClusterFactory
from tests.support.history import End

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

#: What one commit of home or peer surely does, so that a count of 0 is noticed. It removes and cuts no file.
NEVER_MADE: Final = {"unlink", "ftruncate"}


@pytest.fixture(scope="module")
def crash(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashLab]:
    """One cluster for all kills; its whole history is judged at the end."""
    with crash_lab(module_cluster, tmp_path_factory.mktemp("kills"), supervised=(HOME, PEER)) as crash:
        yield crash


@pytest.mark.parametrize("victim", [HOME, PEER], ids=["home", "peer"])
@pytest.mark.parametrize("kind", seccomp.KINDS)
def test_killed_at_every_call(
    crash: CrashLab, victim: str, kind: str, record_property: Callable[[str, object], None]
) -> None:
    """Killed at each; a peer's death hinders nobody, a home's leaves all of the transaction or nothing."""
    counted = Trap(kind, 0)
    crash.strike(victim, counted)
    hits = []
    for at in itertools.count(1):
        trap = Trap(kind, at)
        ending = crash.strike(victim, trap)
        assert victim == HOME or (ending.end, ending.error) == (End.OK, None)
        if trap.hit is not None:
            hits.append(trap.hit)
        elif at > len(counted.passed):
            break
    assert hits or kind in NEVER_MADE
    record_property("told", f"{len(hits)} of {victim}'s {kind}: " + ", ".join(str(hit) for hit in hits))
