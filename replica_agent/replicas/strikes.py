"""Strikes replicas that hold the others back, and estimates what each holds back in ZooKeeper.

Any agent may strike. To spare ZooKeeper requests of all agents, the first of the live replicas looks at each
turn, and the others now and then, as for the horizon. The rules are in
:mod:`tidelock.replication.core.strike_rules`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, ReplicaId, csn, epoch_of, sequence_of
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Store
from tidelock.csnlog.log import CsnLog, LogState
from tidelock.errors import MembershipError
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replication.core.lag import csns_behind, epochs_of
from tidelock.replication.core.membership_rules import StrikeReplica
from tidelock.replication.core.strike_rules import (
    ZNODE_BYTES,
    HeldRecords,
    LogLength,
    StandstillWatch,
    StrikeLimits,
    held_back,
    reason_to_strike,
    to_strike,
)
from tidelock.replication.membership import MemberChanges

_log = structlog.get_logger("members")

#: Records whose bytes are read for the mean.
_SAMPLES: Final = 16
#: Number of turns after which an agent looks although it is not the first.
_BACKUP_TURNS: Final = 6


@dataclass(slots=True, kw_only=True, eq=False)
class Strikes:
    """Strikes, as one agent decides them.

    Attributes:
        limits: The bounds.
        keep_records: Records that are kept when every replica has applied them.
        keep_bytes: ZooKeeper's memory for them.
        clock: Monotonic seconds.
    """

    replica: ReplicaId
    store: Store
    log: CsnLog
    membership: Membership
    changes: MemberChanges
    limits: StrikeLimits
    keep_records: int
    keep_bytes: int
    metrics: Metrics
    clock: Callable[[], float]
    _watch: StandstillWatch = field(default_factory=StandstillWatch, init=False)
    _turn: itertools.count[int] = field(default_factory=itertools.count, init=False)
    _record_bytes: float = field(default=0.0, init=False)
    _refused: str = field(default="", init=False)

    async def check(self) -> None:
        """Strike the replica that holds the others back most, if there is one and the others are enough.

        Raises:
            FencedError, UnavailableError: The next turn continues.
        """
        self._show()
        if self.log.state is not LogState.FOLLOWING or not self._is_turn():
            return
        await self._sample()
        tail = await self.store.get(tree.TAIL)
        seen = await self.changes.read()
        if seen is None or not isinstance(tail, Ok):
            return
        log = LogLength(
            records=csns_behind(codec.decode_csn(tail.value.data), seen.end, seen.epochs),
            kept=self.records_to_keep(),
            record_bytes=self._record_bytes,
        )
        now = self.clock()
        self._watch.note(seen, now)
        reasons = {
            replica: reason_to_strike(
                replica,
                seen,
                self.limits,
                silent_s=self.membership.silent_s(replica),
                standing_s=self._watch.standing_s(replica, now),
                log=log,
            )
            for replica in seen.members()
        }
        replica = to_strike(reasons, seen, self.replica)
        if replica is None:
            return
        try:
            if await self.changes.make(StrikeReplica(replica)):
                _log.warning("struck", replica=replica, reason=reasons[replica])
        except MembershipError as error:
            if error.message != self._refused:
                self._refused = error.message
                _log.error("not_struck", replica=replica, reason=reasons[replica], refused=error.message)

    def held(self, replica: ReplicaId) -> HeldRecords:
        """Return what a replica holds back in ZooKeeper, as far as this agent has seen."""
        found = self.membership.view.get(replica)
        at = found.progress.snapshot if found is not None and found.progress is not None else CSN_NONE
        return held_back(
            csns_behind(at, self.log.end, epochs_of(self.membership.cluster)), self._record_bytes
        )

    def held_s(self, replica: ReplicaId) -> float:
        """Return for how long a replica was silent, or applied nothing, as far as this agent has seen."""
        return max(self.membership.silent_s(replica), self._watch.standing_s(replica, self.clock()))

    def records_to_keep(self) -> int:
        """Return how many applied records are kept, by their number and by their bytes."""
        by_bytes = int(self.keep_bytes / (self._record_bytes + ZNODE_BYTES))
        return max(1, min(self.keep_records, by_bytes))

    def _show(self) -> None:
        for peer in self.membership.peers():
            held = HeldRecords(0, 0) if peer.struck else self.held(peer.replica)
            self.metrics.held.records.labels(peer.replica).set(held.records)
            self.metrics.held.bytes.labels(peer.replica).set(held.bytes)

    async def _sample(self) -> None:
        """Read some records of the present epoch for the mean of their bytes."""
        end = self.log.end
        last = sequence_of(end)
        numbers = {round(last * part / _SAMPLES) for part in range(1, _SAMPLES + 1)}
        paths = [tree.record(csn(epoch_of(end), number)) for number in sorted(numbers)]
        found = await asyncio.gather(*map(self.store.get, paths))
        sizes = [len(node.value.data) for node in found if isinstance(node, Ok)]
        if sizes:
            self._record_bytes = sum(sizes) / len(sizes)

    def _is_turn(self) -> bool:
        live = [replica for replica, found in self.membership.view.items() if found.alive]
        return self.replica == min(live, default=self.replica) or next(self._turn) % _BACKUP_TURNS == 0
