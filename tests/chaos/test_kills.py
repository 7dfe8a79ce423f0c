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
from tests.chaos.supervisor import Call, Trap, census
from tests.support.clusters.cluster import ClusterFactory
from tests.support.telling import Tell
from workloads.history import CallEnd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


#: Every other kind is surely hit. A commit removes and cuts no file; a start does.
NOT_BY_A_COMMIT: Final = {"unlink", "ftruncate"}


@pytest.fixture(scope="module")
def crash(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashLab]:
    """One cluster for all kills; its whole history is judged at the end."""
    with crash_lab(module_cluster, tmp_path_factory.mktemp("kills"), supervised=(HOME, PEER)) as crash:
        yield crash


@pytest.mark.parametrize("victim", [HOME, PEER], ids=["home", "peer"])
@pytest.mark.parametrize("kind", seccomp.KINDS)
def test_killed_at_every_call(crash: CrashLab, victim: str, kind: str, tell: Tell) -> None:
    """Killed at each; a peer's death hinders nobody, a home's leaves all of the transaction or nothing."""

    def strike(trap: Trap) -> None:
        ending = crash.strike(victim, trap)
        assert victim == HOME or (ending.end, ending.error) == (CallEnd.OK, None)

    hits = every(kind, strike)
    assert hits or kind in NOT_BY_A_COMMIT
    tell(f"killed {len(hits)} times: {census(hits) or 'no such call'}")


@pytest.mark.parametrize("kind", ["fsync", "rename", "unlink"])
def test_killed_while_it_recovers(crash: CrashLab, kind: str, tell: Tell) -> None:
    """Killed before a pack has its name, then at each call of the start that is to clean up after that."""

    def strike(trap: Trap) -> None:
        first = Trap("rename", 1, about=lambda call: ".pack" in call.subject)
        ending = crash.strike(HOME, first, again=trap)
        assert first.hit is not None
        assert ending.end is CallEnd.FAIL

    hits = every(kind, strike)
    assert hits
    tell(f"killed {len(hits)} times: {census(hits)}")


def every(kind: str, strike: Callable[[Trap], None]) -> list[Call]:
    """Strike at every number of which there is a call; returns those that were hit."""
    counted = Trap(kind, 0)
    strike(counted)
    hits: list[Call] = []
    for at in itertools.count(1):
        trap = Trap(kind, at)
        strike(trap)
        if trap.hit is not None:
            hits.append(trap.hit)
        elif at > len(counted.passed):
            return hits
    raise AssertionError("numbers do not end")
