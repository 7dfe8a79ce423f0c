"""One replica's log for tests, on any store: its session, the delivered records, its states so far."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from tests.support.clusters.resolving import GivenLocal, resolver_over
from tests.support.wall_clocks import own_clock
from tidelock.csnlog.cluster.bootstrap import KnownState, OwnSession, bootstrap, open_session
from tidelock.csnlog.core.ids import CSN_IMPORT, CSN_NONE, Csn, ReplicaId, TableId, Tid
from tidelock.csnlog.core.imprint import UNKNOWN, Imprint
from tidelock.csnlog.core.model import LogRecord, MemberState, RecordKind, TidRecord
from tidelock.csnlog.core.results import Aborted, Committed, Outcome, Running
from tidelock.csnlog.core.store import Store
from tidelock.csnlog.log import CsnLog, LogLimits, LogState, Proposal
from tidelock.csnlog.testing.memory_store import MemoryStore
from tidelock.replica_agent.transactions.outcomes.rules import AUDIT, Policy

R1, R2, R3 = (ReplicaId(name) for name in ("r1", "r2", "r3"))

#: Pauses that suit a test; bounds as an agent has them.
LIMITS = LogLimits(recheck_s=0.1, retry_s=0.005)


async def make_cluster(store: Store, replicas: Sequence[ReplicaId] = (R1, R2, R3)) -> None:
    """Make a cluster with these replicas."""
    await bootstrap(store, replicas=replicas, copies=1 if len(replicas) == 1 else 2, epoch_limit=1000)


class LogNode:
    """A replica's log. Use it as a context manager; the owner of the store closes it."""

    def __init__(
        self,
        store: Store,
        replica: ReplicaId = R1,
        *,
        limits: LogLimits = LIMITS,
        position: Csn = CSN_IMPORT,
        last: Imprint = UNKNOWN,
        start: bool = True,
        on_fence: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.store = store
        self.replica = replica
        self.limits = limits
        self.position, self.last, self.on_fence = position, last, on_fence
        self.delivered: list[LogRecord] = []
        self.states: list[LogState] = []
        #: While it is cleared, records wait inside deliver().
        self.taking = asyncio.Event()
        self.taking.set()
        self.own: OwnSession
        self.log: CsnLog
        self._start = start

    async def __aenter__(self) -> Self:
        self.own = await open_session(
            self.store,
            replica=self.replica,
            member=MemberState(),
            disk=f"disk-{self.replica}",
            known=KnownState(),
            nonce=lambda: secrets.token_hex(8),
        )
        self.log = CsnLog(
            self.store,
            session=self.own,
            limits=self.limits,
            clocks=own_clock(),
            deliver=self.deliver,
            on_state=lambda state, _: self.states.append(state),
            on_fence=self.on_fence,
        )
        if self._start:
            await self.log.start(self.position, self.last)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.log.close()

    async def deliver(self, records: list[LogRecord]) -> None:
        """Accept records, when allowed to."""
        await self.taking.wait()
        self.delivered += records

    def tid(self, counter: int) -> Tid:
        """Return a tid of this replica's present boot."""
        return Tid(Csn(1), self.replica, self.own.boot, counter)

    def proposal(self, counter: int, tables: Mapping[TableId, int] | None = None, **more: object) -> Proposal:
        """Return a small transaction."""
        return Proposal(TidRecord(str(self.tid(counter))), tables or {}, **more)  # type: ignore[arg-type]

    async def commit(self, counter: int, *, timeout_s: float = 30.0) -> Csn:
        """Commit a small transaction."""
        return (await self.log.commit(self.proposal(counter), timeout_s=timeout_s)).csn

    def known(self, tid: Tid) -> Committed | None:
        """Return the knowledge of a catalog: the outcomes of all delivered records."""
        csns = tids_of(self.delivered).get(str(tid), [])
        return Committed(csns[0]) if csns else None

    async def outcome(
        self,
        tid: Tid,
        *,
        floor: Csn = CSN_NONE,
        known: Callable[[Tid], Committed | None] | None = None,
        policy: Policy = AUDIT,
    ) -> Outcome:
        """Return the outcome of a transaction by the product's resolver; homes do not answer."""
        local = GivenLocal(
            replica=self.replica,
            boot=self.own.boot,
            known=known or self.known,
            registered=self.registered,
            oldest=floor,
        )
        return await resolver_over(self.log, local).outcome(tid, policy)

    def registered(self, tid: Tid) -> Aborted | Running | None:
        """Return a registry's answer: here a transaction of the present boot ends only by its commit."""
        return Running() if (tid.home, tid.boot) == (self.replica, self.own.boot) else None

    @property
    def reached(self) -> Csn:
        """CSN of the last record that was delivered."""
        return self.delivered[-1].csn if self.delivered else self.position


def tids_of(records: Iterable[LogRecord]) -> dict[str, list[Csn]]:
    """Return every tid with its CSNs; more than one CSN is a violation of I1."""
    found: dict[str, list[Csn]] = {}
    for one in records:
        for tid in one.record.tids:
            found.setdefault(tid.tid, []).append(one.csn)
    return found


def check_sequence(records: Sequence[LogRecord], after: Csn = CSN_IMPORT) -> None:
    """Assert that records follow each other without a gap, and epochs end with END records (I2)."""
    expected = Csn(after + 1)
    for one in records:
        assert one.csn == expected, f"{one.csn} where {expected} was expected"
        closed = one.record.kind is RecordKind.END
        expected = Csn(((one.csn >> 31) + 1) << 31) if closed else Csn(one.csn + 1)


def memory(node: LogNode) -> MemoryStore:
    """Return the store of a node, which is in memory."""
    assert isinstance(node.store, MemoryStore)
    return node.store
