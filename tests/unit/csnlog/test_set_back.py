"""A ZooKeeper that was set back to an older state of itself, under logs that live and logs that start again.

All versions fit, a commit gets a CSN that was given before, and a replica acknowledges it although it shows
another record there (I4, I10, I15).
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.aio import until
from tests.support.clusters.log_node import R1, R2, LogNode, make_cluster
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.fence import seize
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.imprint import NEXT_STEP, Imprint
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.log import LogLimits, LogState
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, MemoryStore
from tidelock.errors import CommitUnknownError, TidelockError, UnavailableError

#: The clients of a replica whose session has ended look for a server again at once.
LIMITS = LogLimits(recheck_s=0.02, retry_s=0.002)


@pytest.fixture
async def ensemble() -> MemoryEnsemble:
    """An ensemble with a cluster."""
    made = MemoryEnsemble()
    await make_cluster(made.store())
    return made


async def grown(ensemble: MemoryEnsemble, node: LogNode) -> int:
    """Let r1 commit CSNs 2 to 6, and set the ensemble back to CSN 3; return the CSN of the backup."""
    for number in (1, 2):
        await node.commit(number)
    backup = ensemble.backup()
    for number in (3, 4, 5):
        await node.commit(number)
    await until(lambda: node.reached == 6)
    ensemble.set_back(backup)
    return 3


async def others(ensemble: MemoryEnsemble, count: int) -> None:
    """Let r2, which knows of the first three records only, commit so many."""
    async with LogNode(ensemble.store(), R2, limits=LIMITS, position=Csn(3)) as other:
        for number in range(count):
            await other.commit(100 + number)


def expire(node: LogNode) -> None:
    """End the session of a replica: the next one begins with any state."""
    assert isinstance(node.store, MemoryStore)
    node.store.expire()


@pytest.mark.parametrize("taken", [0, 2, 3, 8])
@pytest.mark.parametrize("session", ["same", "new"])
async def test_a_living_log_stops_and_acknowledges_nothing(
    ensemble: MemoryEnsemble, taken: int, session: str
) -> None:
    """However many CSNs others have taken meanwhile, in the same session or another one."""
    async with LogNode(ensemble.store(), R1, limits=LIMITS) as node:
        await grown(ensemble, node)
        await others(ensemble, taken)
        if session == "new" or taken < 8:  # a server that has written less refuses the client's session
            expire(node)
        with pytest.raises(TidelockError) as refused:
            await node.commit(6)
        assert isinstance(refused.value, CommitUnknownError | UnavailableError)
        await until(lambda: node.log.state is LogState.STOPPED)
        assert "ZooKeeper holds an" in node.log.reason
        assert node.reached == 6


async def test_a_log_that_starts_again_stops(ensemble: MemoryEnsemble) -> None:
    """Its catalog knows the last record; ZooKeeper has another one there."""
    async with LogNode(ensemble.store(), R1, limits=LIMITS) as node:
        await grown(ensemble, node)
        last = Imprint.of(node.delivered[-1])
    await others(ensemble, 8)
    async with LogNode(ensemble.store(), R1, limits=LIMITS, position=Csn(6), last=last) as again:
        await until(lambda: again.log.state is LogState.STOPPED)
        assert "ZooKeeper holds another history: at CSN 6" in again.log.reason
        assert again.delivered == []


async def test_nothing_is_written_before_the_history_was_proven(ensemble: MemoryEnsemble) -> None:
    """A fenced write of a living replica does not reach a ZooKeeper that was set back (rule fences)."""
    async with LogNode(ensemble.store(), R1, limits=LIMITS) as node:
        await grown(ensemble, node)
        await others(ensemble, 8)
        expire(node)
        before = ensemble.zxid
        written = [node.log.fenced(()) for _ in range(3)]
        with pytest.raises(UnavailableError):
            await node.log.barrier()
        results = await asyncio.gather(*written)
        assert not any(type(result).__name__ == "Ok" for result in results)
        assert ensemble.zxid == before


async def test_a_replica_that_was_behind_the_backup_goes_on(ensemble: MemoryEnsemble) -> None:
    """It has applied nothing of what is lost, so it cannot contradict; others stop."""
    async with (
        LogNode(ensemble.store(), R1, limits=LIMITS) as node,
        LogNode(ensemble.store(), R2, limits=LIMITS) as behind,
    ):
        behind.taking.clear()
        await node.commit(1)
        await until(lambda: behind.reached == 1)
        backup = ensemble.backup()
        ensemble.set_back(backup)
        behind.taking.set()
        expire(node)
        expire(behind)
        assert await node.commit(2) == 3
        await until(lambda: behind.reached == node.reached == 3)
        assert (behind.log.state, node.log.state) == (LogState.FOLLOWING, LogState.FOLLOWING)


async def test_every_raise_of_the_fence_is_told(ensemble: MemoryEnsemble) -> None:
    """The agent saves it, so that a start notices a ZooKeeper with a lower one."""
    fences: list[int] = []
    async with LogNode(ensemble.store(), R1, limits=LIMITS, on_fence=fences.append) as node:
        await node.commit(1)
        for _ in range(3):
            before = node.log.fence
            expire(node)
            await until(lambda before=before: node.log.fence > before)  # type: ignore[misc]
    assert fences == sorted(set(fences))
    assert fences[-1] == node.log.fence


async def test_a_log_whose_fence_alone_was_set_back_stops(ensemble: MemoryEnsemble) -> None:
    """The records are those of before, so only the raise that is lost shows it."""
    async with LogNode(ensemble.store(), R1, limits=LIMITS) as node:
        await node.commit(1)
        backup = ensemble.backup()
        before = node.log.fence
        expire(node)
        await until(lambda: node.log.fence > before)
        ensemble.set_back(backup)
        expire(node)
        with pytest.raises(TidelockError):
            await node.commit(2)
        await until(lambda: node.log.state is LogState.STOPPED)
        assert "ZooKeeper holds an" in node.log.reason
        assert NEXT_STEP in node.log.reason


async def test_a_fence_with_another_raise_at_its_version_stops(ensemble: MemoryEnsemble) -> None:
    """Somebody else has fenced the replica in the older state, and got the version that was lost."""
    async with LogNode(ensemble.store(), R1, limits=LIMITS) as node:
        await node.commit(1)
        backup = ensemble.backup()
        before = node.log.fence
        expire(node)
        await until(lambda: node.log.fence > before)
        ensemble.set_back(backup)
        other = ensemble.store()
        found = await other.get(tree.session(R1))
        assert isinstance(found, Ok)
        seized = seize(tree.session(R1), found.value, node.own.boot, "another nonce")
        assert seized is not None
        assert isinstance(await other.multi((seized,)), Ok)
        expire(node)
        await until(lambda: node.log.state is LogState.STOPPED)
        assert NEXT_STEP in node.log.reason
