"""Gets a sealed transaction its durable copies: persists it here, has it pushed to the peers, and counts.

The counting is the pure machine :class:`tidelock.replication.core.copies.Copies`; this shell feeds it and
hands its decisions to the commits that wait. It waits for copies as long as bytes of copies that count
arrive, so that a large commit is not refused for its size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import ReplicaId, Tid
from tidelock.csnlog.core.machine import InvariantError
from tidelock.errors import NotEnoughReplicasError, TidelockError
from tidelock.replica_agent.storage.pack_writer import StagedBytes, Stager
from tidelock.replication.core import messages as msg
from tidelock.replication.core.copies import Copies
from tidelock.replication.core.model import CountedCopies, CountingRules, Held, PartMeta, SealedTid
from tidelock.replication.core.room import DiskUse
from tidelock.replication.fetch import Fetcher
from tidelock.replication.push import Pusher

SEAL = faults.step("agent.seal")


@dataclass(slots=True, eq=False)
class _Arriving:
    """How far the copies of a transaction have come: bytes at each peer, and the loop's time of the last."""

    last_s: float
    at: dict[ReplicaId, int] = field(default_factory=dict)

    def note(self, replica: ReplicaId, size: int, now_s: float) -> None:
        """Note what a peer reports; less than before is a transfer that began again."""
        if size > self.at.get(replica, 0):
            self.at[replica] = size
            self.last_s = now_s


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class CopyMaker:
    """Makes the copies of this home's transactions.

    Attributes:
        machine: Counts the copies.
        on_broken: Called when the machine contradicts itself; the agent must stop then (I15).
    """

    machine: Copies
    stager: Stager
    pusher: Pusher
    fetcher: Fetcher
    on_broken: Callable[[InvariantError], None]
    _waiting: dict[str, asyncio.Future[CountedCopies]] = field(default_factory=dict, init=False)
    _rules: CountingRules | None = field(default=None, init=False)
    #: Of each transaction that waits: the most bytes that each peer has reported, and when the last came.
    _arriving: dict[str, _Arriving] = field(default_factory=dict, init=False)

    async def make(
        self, tid: Tid, parts: Sequence[PartMeta], memory: Sequence[StagedBytes], timeout_s: float
    ) -> CountedCopies:
        """Return the holders when enough of them are durable.

        Raises:
            NotEnoughReplicasError: The copies were not made, and no byte of them has arrived for
                ``timeout_s``.
            TidelockError: The error of :meth:`call_off`.
            DiskFullError, UnavailableError: This replica itself could not store the parts.
        """
        # A manifest may list removals, which make room.
        new = sum(item.meta.length for item in memory if item.meta.kind != "manifest")
        if new:
            self.stager.files.room.admit(DiskUse.NEW, new)
        ready: asyncio.Future[CountedCopies] = asyncio.get_running_loop().create_future()
        self._waiting[str(tid)] = ready
        try:
            await SEAL.before()
            self._feed(msg.TransactionSealed(tid, tuple(parts)))
            self.pusher.push(SealedTid(tid, tuple(parts)), {item.meta.part: item.data for item in memory})
            # The rows are awaited even when the time is over: an abort must find every row that it has to
            # take back.
            await self.stager.store(memory, [tid])
            await SEAL.after()
            self._feed(msg.PersistedAtHome(tid))
            return await self._counted(tid, ready, timeout_s)
        finally:
            self._waiting.pop(str(tid), None)

    async def count_again(self, tid: Tid, above: int, timeout_s: float) -> CountedCopies:
        """Return the holders as counted at a version of ``replicas`` above ``above``.

        Raises:
            NotEnoughReplicasError: There are not enough copies, and no byte of them has arrived for
                ``timeout_s``.
        """
        ready: asyncio.Future[CountedCopies] = asyncio.get_running_loop().create_future()
        self._waiting[str(tid)] = ready
        try:
            self._feed(msg.CountAgain(tid, above))
            return await self._counted(tid, ready, timeout_s)
        finally:
            self._waiting.pop(str(tid), None)

    async def _counted(
        self, tid: Tid, ready: asyncio.Future[CountedCopies], timeout_s: float
    ) -> CountedCopies:
        now = asyncio.get_running_loop().time
        arriving = self._arriving[str(tid)] = _Arriving(now())
        try:
            while not ready.done() and (left_s := arriving.last_s + timeout_s - now()) > 0:
                await asyncio.wait([ready], timeout=left_s)
            if not ready.done():
                self._feed(msg.Deadline(tid))
            return await ready
        finally:
            del self._arriving[str(tid)]

    def call_off(self, tid: Tid, error: TidelockError) -> None:
        """End the wait for the copies of a transaction with this error; its rows here are awaited first."""
        ready = self._waiting.get(str(tid))
        if ready is not None and not ready.done():
            ready.set_exception(error)

    def acknowledged(self, held: Held) -> None:
        """Note that a peer has answered a push."""
        if self.machine.would_count(held.replica, held.disk):
            now_s = asyncio.get_running_loop().time()
            for tid, size in held.arrived.items():
                if (arriving := self._arriving.get(tid)) is not None:
                    arriving.note(held.replica, size, now_s)
        self._feed(msg.Ack(held))

    def members(self, rules: CountingRules) -> None:
        """Note what the member list says of the copies that count."""
        if rules != self._rules:
            self._rules = rules
            self._feed(msg.RulesChanged(rules))

    def release(self, tid: Tid) -> None:
        """Forget a committed transaction: a replica that lacks its parts learns of them from the log."""
        self._feed(msg.TransactionDecided(tid))
        self.pusher.decided(tid)

    def rolled_back(self, tid: Tid) -> None:
        """Stop fetching parts of a rolled-back transaction, and notify the peers that may hold some."""
        self._feed(msg.RolledBack(tid))
        self.fetcher.cancel([str(tid)])
        self.pusher.forget(tid)

    def _feed(self, event: msg.CopiesEvent) -> None:
        try:
            instructions = self.machine.step(event)
        except InvariantError as error:
            self.on_broken(error)
            raise
        for instruction in instructions:
            waiting = self._waiting.get(str(instruction.tid))
            if waiting is None or waiting.done():
                continue
            match instruction:
                case msg.Ready():
                    waiting.set_result(instruction.copies)
                case msg.NotEnough():
                    waiting.set_exception(_not_enough(instruction))
                case _:
                    assert_never(instruction)


def _not_enough(found: msg.NotEnough) -> NotEnoughReplicasError:
    missing = ", ".join(found.missing)
    text = (
        f"{found.tid} got {found.have} of {found.need} durable copies, and no byte more came within the "
        f"commit timeout, since {missing} did not confirm; it was rolled back: start these replicas, then "
        "run it again"
    )
    return NotEnoughReplicasError(text, have=found.have, need=found.need, missing=list(found.missing))
