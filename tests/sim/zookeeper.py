"""ZooKeeper for a run: the product's model of an ensemble, with faults, delays and expiries by the plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.sim.life import LIFE, AgentLife
from tests.sim.machine import EPOCH_S
from tidelock.csnlog.core.results import Ok, Refused, Unknown
from tidelock.csnlog.core.store import LinkState, Op
from tidelock.csnlog.testing.memory_store import (
    EnsembleBackup,
    MemoryEnsemble,
    MemoryStore,
    RequestFault,
    StoreRequest,
)

if TYPE_CHECKING:
    from tests.sim.world import SimWorld

SERVERS: Final = 3
#: An answer takes about so long, in seconds.
DELAY_S: Final = 0.004
#: A client has found another server after about so long, in seconds.
RECONNECT_S: Final = 0.2
#: After a restart the servers end the sessions of which they have heard nothing for so long, in seconds.
SILENT_S: Final = 4.0
#: Late requests arrive within so many seconds.
LATE_S: Final = 4.0


class SimEnsemble(MemoryEnsemble):
    """Three servers.

    Attributes:
        skew_s: How far the wall clock of the leader is ahead.
    """

    def __init__(self, world: SimWorld) -> None:
        super().__init__(
            turn=self._answered,
            servers=SERVERS,
            plan=self._fate,
            reconnect=self._come_back,
            now_ms=self._now_ms,
        )
        self._world = world
        self._chance = world.chance("zookeeper")
        self._kinds = [RequestFault[name] for name in world.plan.request_kinds]
        self.rate = 0.0
        self.skew_s = 0.0
        #: When the last answer of a life came: answers keep their order.
        self._last: dict[object, float] = {}
        self.choose = self._chance.choice

    def _now_ms(self) -> int:
        return round((EPOCH_S + asyncio.get_running_loop().time() + self.skew_s) * 1000)

    def set_back(self, backup: EnsembleBackup) -> None:
        """Begin again from an older state; sessions of which the servers hear nothing end (see the base)."""
        super().set_back(backup)
        self._last.clear()
        asyncio.get_running_loop().call_later(SILENT_S, self._end_silent)

    def _end_silent(self) -> None:
        """End the sessions that have no client: dead ones that the older state knew, and those refused."""
        heard = {client.session for client in self._clients if client.link is LinkState.CONNECTED}
        owners = {znode.owner_session for _, znode in sorted(self.tree.state(), key=lambda item: item[0])}
        refused = {client.session for client in self._clients if client.link is not LinkState.CONNECTED}
        for session in sorted((owners | refused) - heard - {0}):
            self.end_session(session)

    def expire_later(self, store: MemoryStore, timeout_s: float) -> None:
        """Let a session end unless its client is heard again within its timeout."""
        session = store.session

        def end() -> None:
            if store.session == session and store.link is not LinkState.CONNECTED:
                self.end_session(session)

        asyncio.get_running_loop().call_later(timeout_s, end)

    def expire_frozen(self, store: MemoryStore, life: AgentLife, timeout_s: float) -> None:
        """Let the session of a frozen process end, unless it goes on within the timeout.

        Its client does not know: it learns that from the answer to what it asks afterwards.
        """
        session = store.session

        def end() -> None:
            if life.frozen:
                self.end_session(session)

        asyncio.get_running_loop().call_later(timeout_s, end)

    def _come_back(self, connect: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(RECONNECT_S * self._chance.uniform(0.1, 2.0), connect)

    async def _answered(self) -> None:
        loop, life = asyncio.get_running_loop(), LIFE.get(None)
        delay_s = DELAY_S if life is None else life.host.answer_s
        at_s = loop.time() + delay_s * self._chance.uniform(0.2, 2.0)
        if life is not None:
            at_s = self._last[life] = max(at_s, self._last.get(life, 0.0) + 1e-6)
        await asyncio.sleep(at_s - loop.time())

    def _fate(self, call: StoreRequest) -> RequestFault | None:
        if LIFE.get(None) is None or self._chance.random() >= self.rate:
            return None
        fault = self._chance.choice(self._kinds)
        self._world.trace.note("fault", call.store, call.kind, call.path, fault.value)
        if fault is RequestFault.LATE:
            self._deliver_soon()
        return fault

    def _deliver_soon(self) -> None:
        asyncio.get_running_loop().call_later(self._chance.uniform(0.01, LATE_S), self.deliver_late)

    def _apply(self, ops: tuple[Op, ...], session: int) -> Ok[tuple[object, ...]] | Refused | Unknown:
        result = super()._apply(ops, session)
        self._world.trace.note("multi", session, *(_brief(op) for op in ops), _brief(result))
        if isinstance(result, Ok):
            self._world.oracle.wrote(ops, result.value)
        return result


def _brief(value: Op | Ok[tuple[object, ...]] | Refused | Unknown) -> str:
    match value:
        case Ok():
            return "ok"
        case Refused(reason, index):
            return f"{reason.value}@{index}"
        case Unknown():
            return "unknown"
        case _:
            return f"{type(value).__name__}({value.path})"
