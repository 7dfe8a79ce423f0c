"""Reads of the log for a commit while there is no connection to ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from tests.support.clusters.log_node import LIMITS, R1, LogNode, make_cluster, memory
from tidelock.csnlog.testing.memory_store import MemoryEnsemble
from tidelock.errors import UnavailableError


@pytest.fixture
async def ensemble() -> MemoryEnsemble:
    """Give an ensemble with a cluster."""
    ensemble = MemoryEnsemble()
    await make_cluster(ensemble.store("setup"))
    return ensemble


@pytest.fixture
async def node(ensemble: MemoryEnsemble) -> AsyncIterator[LogNode]:
    """Give the log of r1."""
    async with LogNode(ensemble.store("r1")) as node:
        yield node


async def _reads_of_a_commit(node: LogNode, patience_s: float) -> list[object]:
    """Return the answers to the reads that come before a proposal, asked for at once."""
    log = node.log
    reads = (
        log.head(patience_s=patience_s),
        log.tables(patience_s=patience_s),
        log.label("query", patience_s=patience_s),
    )
    return list(await asyncio.gather(*reads, return_exceptions=True))


async def test_reads_of_a_commit_wait_for_a_lost_connection(node: LogNode) -> None:
    """A commit that validates when ZooKeeper has no leader for a moment goes on with the next one."""
    expected = await _reads_of_a_commit(node, 0.0)
    memory(node).suspend()
    waiting = asyncio.create_task(_reads_of_a_commit(node, 60.0))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    memory(node).resume()
    assert await waiting == expected


@pytest.mark.parametrize(("patience_s", "limit_s"), [(0.0, 60.0), (0.02, 60.0), (60.0, 0.02)])
async def test_patience_without_a_connection_has_an_end(
    ensemble: MemoryEnsemble, patience_s: float, limit_s: float
) -> None:
    """The time of the caller and the limit of the log are both bounds."""
    async with LogNode(ensemble.store(), R1, limits=replace(LIMITS, patience_s=limit_s)) as node:
        memory(node).suspend()
        async with asyncio.timeout(5.0):
            found = await _reads_of_a_commit(node, patience_s)
    assert [type(one) for one in found] == [UnavailableError] * 3
    assert all("no connection to ZooKeeper" in str(one) for one in found)


async def test_patience_ends_with_the_log_itself(node: LogNode) -> None:
    """A read that waits for a connection is refused as soon as this replica's log is closed."""
    memory(node).suspend()
    waiting = asyncio.create_task(_reads_of_a_commit(node, 60.0))
    await asyncio.sleep(0.05)
    await node.log.close()
    async with asyncio.timeout(5.0):
        found = await waiting
    assert {str(one) for one in found} == {"the log has ended on this replica: this agent is closing its log"}
