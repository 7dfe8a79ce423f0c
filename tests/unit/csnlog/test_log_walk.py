"""Random histories of whole logs over the store in memory: faults at any request, crashes, further boots.

Three replicas commit while a share of all requests fails in every way that the store knows. Now and then a
replica dies during its work and begins a new boot, which fences the old one. At the end all answers to
callers are compared with the log, and with the outcomes of every replica (I1, I2, I4, I8, I17).
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.aio import until
from tests.support.clusters.log_node import R1, R2, R3, LogNode, check_sequence, make_cluster, tids_of
from tidelock.csnlog.core.batch import LogLimits
from tidelock.csnlog.core.ids import CSN_IMPORT, Csn, ReplicaId, Tid
from tidelock.csnlog.core.results import Aborted, Committed, Running
from tidelock.csnlog.log import LogState
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, random_faults
from tidelock.errors import CommitUnknownError, RefusedError, UnavailableError

LIMITS = LogLimits(epoch_limit=12, batch_tids_max=4, read_ahead=5, recheck_s=0.02, retry_s=0.001)
REPLICAS = (R1, R2, R3)


class Walk:
    """The replicas in their present boots, and all answers that callers got."""

    def __init__(self, seed: int, rate: float) -> None:
        self.random = random.Random(seed)
        self.rate = rate
        self.ensemble = MemoryEnsemble()
        self.nodes: dict[ReplicaId, LogNode] = {}
        self.lives: list[LogNode] = []
        self.committed: dict[Tid, Csn] = {}
        self.refused: set[Tid] = set()
        self.unknown: set[Tid] = set()
        self.counter = 0

    async def begin(self, replica: ReplicaId) -> None:
        """Begin a boot of a replica where its last one ended; the rest of that one is a zombie."""
        before = self.nodes.get(replica)
        node = LogNode(
            self.ensemble.store(f"{replica}-{len(self.lives)}"),
            replica,
            limits=LIMITS,
            position=before.reached if before is not None else CSN_IMPORT,
        )
        self.nodes[replica] = await node.__aenter__()
        self.lives.append(node)

    async def client(self) -> None:
        """Commit through any replica; repeat the same commit while its outcome is unknown."""
        for _ in range(12):
            node = self.nodes[self.random.choice(REPLICAS)]
            self.counter += 1
            tid = node.tid(self.counter)
            for _ in range(self.random.randint(1, 3)):
                try:
                    timeout_s = self.random.choice((0.001, 0.01, 5.0))
                    self.committed[tid] = await node.commit(tid.counter, timeout_s=timeout_s)
                    self.unknown.discard(tid)
                except CommitUnknownError:
                    self.unknown.add(tid)
                    continue
                except (RefusedError, UnavailableError):
                    if tid not in self.unknown:
                        self.refused.add(tid)
                break

    async def run(self) -> None:
        """Run clients under faults, with deaths of replicas in between."""
        await make_cluster(self.ensemble.store("setup"), REPLICAS)
        for replica in REPLICAS:
            await self.begin(replica)
        self.ensemble.plan = random_faults(self.random, rate=self.rate)
        clients = asyncio.gather(*(self.client() for _ in range(8)))
        while not clients.done():
            await asyncio.sleep(0.005)
            if self.random.random() < 0.1 and len(self.lives) < 8:
                await self.begin(self.random.choice(REPLICAS))
        await clients
        self.ensemble.plan = None
        self.ensemble.deliver_late()

    async def check(self) -> None:
        """Compare the answers with the log."""
        await until(lambda: all(node.log.state is LogState.FOLLOWING for node in self.nodes.values()))
        end = max([await node.log.barrier() for node in self.nodes.values()])
        await until(lambda: all(node.reached >= end for node in self.nodes.values()))
        log = await self.nodes[R1].log.records(CSN_IMPORT, 100_000)
        check_sequence(log)
        found = {Tid.parse(tid): csns for tid, csns in tids_of(log).items()}
        assert all(len(csns) == 1 for csns in found.values()), "I1"
        assert {tid: [csn] for tid, csn in self.committed.items()}.items() <= found.items(), "I4, I17"
        assert not self.refused & found.keys(), "I17"
        assert found.keys() <= self.committed.keys() | self.unknown, "I17"
        for node in self.lives:
            assert node.delivered == [one for one in log if node.position < one.csn <= node.reached], "I2"
            assert node.log.state is not LogState.STOPPED, node.log.reason
        for tid in self.committed.keys() | self.refused | self.unknown:
            for node in self.nodes.values():
                told = await node.outcome(
                    tid, known=lambda tid: Committed(found[tid][0]) if tid in found else None
                )
                lives_on = tid.boot == self.nodes[tid.home].own.boot
                expected = Committed(found[tid][0]) if tid in found else Running() if lives_on else Aborted()
                assert told == expected, "I8"


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_the_log_is_what_was_said(seed: int, rate: float) -> None:
    """Acknowledged commits are in the log once, at their CSN; refused ones are not; no commit is unknown."""
    walk = Walk(seed, rate)
    try:
        await walk.run()
        await walk.check()
    finally:
        walk.ensemble.plan = None
        for node in walk.lives:
            await node.log.close()
    assert len(walk.committed) > 20
