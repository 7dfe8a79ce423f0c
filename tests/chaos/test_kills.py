"""SIGKILL at the n-th openat, write, fsync, rename, unlink, ftruncate and sendto of one commit, for many n.

The victim is the home or a peer; the commit inserts into two tables, and the part of one of them is a file
of its own. A first commit counts the calls of a kind; then one commit after the other is hit at another
call (:func:`tests.chaos.supervisor.chosen`). Each time the victim comes back, the client's answer was true,
the transaction is on all replicas or on no replica, and nothing is left over. A kill that did not happen
does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.chaos import seccomp
from tests.chaos.lab import HOME, PEER, CrashLab, crash_lab
from tests.chaos.supervisor import Call, Trap, census, chosen
from tests.support.clusters.cluster import ClusterFactory
from tests.support.telling import Tell
from workloads.history import CallEnd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


#: Kinds that a commit may lack, since only a start removes and truncates files.
NOT_BY_A_COMMIT: Final = {"unlink", "ftruncate"}


@pytest.fixture(scope="module")
def crash(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashLab]:
    """One cluster for all kills; its whole history is checked at the end."""
    with crash_lab(module_cluster, tmp_path_factory.mktemp("kills"), supervised=(HOME, PEER)) as crash:
        yield crash


@pytest.mark.scenario("S53")
@pytest.mark.parametrize("victim", [HOME, PEER], ids=["home", "peer"])
@pytest.mark.parametrize("kind", seccomp.KINDS)
def test_killed_at_every_call(crash: CrashLab, victim: str, kind: str, fresh_seed: int, tell: Tell) -> None:
    """A peer's death at any call delays no commit; a home's death leaves the whole transaction or nothing."""

    def strike(trap: Trap) -> None:
        ending = crash.strike(victim, trap)
        assert victim == HOME or (ending.end, ending.error) == (CallEnd.OK, None)

    hits = every(kind, strike, fresh_seed)
    assert hits or kind in NOT_BY_A_COMMIT
    tell(f"killed {len(hits)} times: {census(hits) or 'no such call'}")


@pytest.mark.scenario("S53")
@pytest.mark.parametrize("kind", ["fsync", "rename", "unlink"])
def test_killed_while_it_recovers(crash: CrashLab, kind: str, fresh_seed: int, tell: Tell) -> None:
    """A victim that was killed before a pack was durable is killed again at each call of its next start."""

    def strike(trap: Trap) -> None:
        first = Trap("fsync", 1, about=lambda call: call.subject.endswith(".pack"))
        ending = crash.strike(HOME, first, again=trap)
        assert first.hit is not None
        assert ending.end is CallEnd.FAIL

    hits = every(kind, strike, fresh_seed)
    assert hits
    tell(f"killed {len(hits)} times: {census(hits)}")


def every(kind: str, strike: Callable[[Trap], None], seed: int) -> list[Call]:
    """Strike at one call after the other, up to the last one; return the calls that were hit."""
    counted = Trap(kind, 0)
    strike(counted)
    hits: list[Call] = []
    for at in chosen(counted.passed, seed):
        trap = Trap(kind, at)
        strike(trap)
        if trap.hit is not None:
            hits.append(trap.hit)
        elif at > len(counted.passed):
            break
    return hits
