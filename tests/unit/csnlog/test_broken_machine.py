"""A machine that contradicts itself stops the log of its replica, with its story in the log (I15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from tests.support.aio import until
from tests.support.clusters.log_node import LogNode, make_cluster
from tidelock.csnlog.core.committer import Flight
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.phase import FollowerPhase
from tidelock.csnlog.log import LogState
from tidelock.csnlog.testing.memory_store import MemoryEnsemble
from tidelock.errors import CommitUnknownError, UnavailableError


@pytest.fixture
async def node() -> AsyncIterator[LogNode]:
    """The log of r1, at rest."""
    ensemble = MemoryEnsemble()
    await make_cluster(ensemble.store("setup"))
    async with LogNode(ensemble.store("r1")) as node:
        await node.commit(1)
        await until(lambda: node.reached == Csn(2))
        yield node


async def test_a_committer_that_contradicts_itself_stops_the_log(node: LogNode) -> None:
    """Callers get an unknown outcome, nothing is sent any more, and the story is in the agent's log."""
    node.log._engine.committer.flight = Flight.COMMIT
    with capture_logs() as logs, pytest.raises(CommitUnknownError):
        await node.commit(2)
    assert (node.log.state, node.states[-1]) == (LogState.STOPPED, LogState.STOPPED)
    assert "a commit under way without its batch" in node.log.reason
    [told] = [line for line in logs if line["event"] == "machine_broken"]
    assert (told["log_level"], told["machine"]) == ("critical", "Committer")
    assert told["story"][-1] == f"> ('Propose', '{node.tid(2)}')"
    assert any("SendCommit" in line for line in told["story"])
    with pytest.raises(CommitUnknownError):
        await node.commit(1)
    with pytest.raises(UnavailableError, match="has ended"):
        await node.log.barrier()


async def test_a_follower_that_contradicts_itself_stops_the_log(node: LogNode) -> None:
    """The follower delivers no more records, and commits end too."""
    follower = node.log._engine.follower
    assert follower is not None
    await until(lambda: follower.phase is FollowerPhase.RESTING)
    follower.position = Csn(follower.next + 9)
    with capture_logs() as logs:
        committing = asyncio.create_task(node.commit(2))
        await until(lambda: node.log.state is LogState.STOPPED)
        with pytest.raises(CommitUnknownError):
            await committing
    [told] = [line for line in logs if line["event"] == "machine_broken"]
    assert told["machine"] == "Follower"
    assert [one.csn for one in node.delivered] == [2]
