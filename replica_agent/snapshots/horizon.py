"""Moves horizon and tail: the shell, with clock and order, around the rules of replication and csnlog.

Any agent may move them at any time. To spare ZooKeeper requests of all agents, the first of the live replicas
moves them at each ``horizon_interval_s``, and the others now and then, in case that the first one cannot.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import structlog

from tidelock.csnlog.cluster.members import MemberView
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId
from tidelock.csnlog.core.roster import LEFT_OUT
from tidelock.csnlog.core.store import Store
from tidelock.csnlog.log import CsnLog, LogState
from tidelock.csnlog.tail import delete_below, move_tail
from tidelock.errors import UnavailableError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replication.core.horizon_rules import Bound, PinWatch, bounds
from tidelock.replication.horizon import end_below, end_expired, raise_horizon, read_horizon, read_pins

_log = structlog.get_logger("history")

#: Number of intervals after which an agent checks horizon and tail although it is not its turn.
_BACKUP_TURNS = 6
#: Number of tries in one turn: each is refused if a pin is taken while it reads.
_TRIES_OF_A_TURN = 5
#: Pause before an operator's request is tried again, and the number of tries.
_AGAIN_S = 0.1
_TRIES = 20


class Moved(msgspec.Struct, frozen=True):
    """The horizon before and after a move, and the reason that bounds it."""

    before: Csn
    horizon: Csn
    held_by: Bound

    def say(self) -> None:
        """Log it, if it moved."""
        if self.horizon > self.before:
            held = self.held_by
            _log.info("horizon", before=self.before, now=self.horizon, held_by=held.kind, name=held.name)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class HorizonMover:
    """Horizon and tail as one agent sees and moves them.

    Attributes:
        members: The registered replicas.
        records_kept: Returns how many of the records that all have applied are kept in ZooKeeper.
        tags: Returns the CSNs of the tags that are applied here.
        retained: Returns the CSN that was the newest one so many seconds ago, 0 if no CSN existed then.
        clock: Monotonic seconds.
    """

    replica: ReplicaId
    settings: AgentSettings
    store: Store
    log: CsnLog
    members: Callable[[], Mapping[ReplicaId, MemberView]]
    records_kept: Callable[[], int]
    tags: Callable[[], Mapping[str, Csn]]
    retained: Callable[[float], Csn]
    clock: Callable[[], float]
    _watch: PinWatch = field(default_factory=PinWatch, init=False)
    _turn: itertools.count[int] = field(default_factory=itertools.count, init=False)
    #: All records below it are deleted.
    _deleted: Csn = field(default=CSN_NONE, init=False)

    async def advance(self) -> None:
        """Move horizon and tail as far as they may go, if it is this replica's turn.

        Raises:
            FencedError, UnavailableError: The next turn continues.
        """
        if self.log.state is not LogState.FOLLOWING or not self._is_turn():
            return
        for _ in range(_TRIES_OF_A_TURN):
            moved = await self._raise(Bound(self.retained(self.settings.history_retention_s), "retention"))
            if moved is not None:
                moved.say()
                break
        tail = await move_tail(self.store, self.log.fenced, self.records_kept())
        if (
            tail is not None
            and tail > self._deleted
            and await delete_below(self.store, self.log.fenced, tail)
        ):
            self._deleted = tail

    async def force(self, csn: Csn | None, *, drop_pins: bool) -> Moved:
        """Raise the horizon by order of an operator, to a CSN or as far as possible; no history is kept.

        Pins below it end with ``drop_pins``. The snapshots of live transactions, and records that a replica
        has not applied, are always kept.

        Raises:
            UnavailableError: ZooKeeper could not be read or written; the horizon may have been raised.
        """
        for _ in range(_TRIES):
            asked = Bound(self.log.end if csn is None else csn, "asked")
            if drop_pins:
                await self._read_pins()
                await end_below(self.log.fenced, self._watch, asked.csn)
            moved = await self._raise(asked)
            if moved is not None:
                moved.say()
                return moved
            await asyncio.sleep(_AGAIN_S)
        raise UnavailableError("the horizon could not be raised now, others are taking pins; try again")

    async def pinned(self, csn: Csn) -> bool:
        """Return whether any client has pinned a CSN."""
        await self._read_pins()
        return csn in self._watch.csns.values()

    async def _read_pins(self) -> None:
        if not await read_pins(self.store, self._watch, self.clock):
            raise UnavailableError("the pins cannot be read now: no connection to ZooKeeper; try again")

    def held_by(self) -> Bound:
        """Return the bound that holds the horizon back, as far as this replica knows."""
        counting = {
            replica: found.progress
            for replica, found in self.members().items()
            if found.progress is not None
            and found.session is not None
            and found.session.state not in LEFT_OUT
        }
        kept = Bound(self.retained(self.settings.history_retention_s), "retention")
        return bounds(self._watch.csns, counting, kept=kept, tags=self.tags())[0]

    @property
    def pins(self) -> int:
        """The number of pins that were seen last."""
        return len(self._watch.csns)

    async def _raise(self, kept: Bound) -> Moved | None:
        """Raise the horizon as far as possible; return None if another change came in between."""
        seen = await read_horizon(self.store, self._watch, self.clock)
        if seen is None:
            return None
        await end_expired(self.log.fenced, self._watch, seen.at)
        lowest = bounds(self._watch.csns, seen.replicas.progress, kept=kept, tags=seen.tags)[0]
        horizon = await raise_horizon(self.log.fenced, seen, lowest.csn)
        return None if horizon is None else Moved(seen.horizon, horizon, lowest)

    def _is_turn(self) -> bool:
        live = [replica for replica, found in self.members().items() if found.alive]
        return self.replica == min(live, default=self.replica) or next(self._turn) % _BACKUP_TURNS == 0
