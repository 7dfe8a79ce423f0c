"""Gets a sealed transaction its durable copies: persists it here, has it pushed to the peers, and counts.

The counting is the pure machine :class:`tidelock.replication.core.copies.Copies`; this shell feeds it and
hands its decisions to the commits that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import ReplicaId, Tid
from tidelock.csnlog.core.machine import InvariantError
from tidelock.errors import NotEnoughReplicasError
from tidelock.replica_agent.storage.pack_writer import StagedBytes, Stager
from tidelock.replication.core import messages as msg
from tidelock.replication.core.copies import Copies
from tidelock.replication.core.model import Held, PartMeta, SealedTid
from tidelock.replication.fetch import Fetcher
from tidelock.replication.push import Pusher

SEAL = faults.step("agent.seal")


class CopyMaker:
    """Makes the copies of this home's transactions.

    Args:
        machine: Counts them; made by the agent with the disks of the members.
        on_broken: Told when the machine contradicts itself; the agent must stop then (I15).
    """

    def __init__(
        self,
        machine: Copies,
        stager: Stager,
        pusher: Pusher,
        fetcher: Fetcher,
        *,
        on_broken: Callable[[InvariantError], None],
    ) -> None:
        self._machine, self._stager, self._pusher, self._fetcher = machine, stager, pusher, fetcher
        self._on_broken = on_broken
        self._waiting: dict[str, asyncio.Future[tuple[ReplicaId, ...]]] = {}
        self._disks: dict[ReplicaId, str] = {}

    async def make(
        self, tid: Tid, parts: Sequence[PartMeta], memory: Sequence[StagedBytes], timeout_s: float
    ) -> tuple[ReplicaId, ...]:
        """Return the holders, home first, when enough of them are durable.

        Raises:
            NotEnoughReplicasError: Not within ``timeout_s``.
            DiskFullError, UnavailableError: This replica itself could not store the parts.
        """
        ready: asyncio.Future[tuple[ReplicaId, ...]] = asyncio.get_running_loop().create_future()
        self._waiting[str(tid)] = ready
        try:
            await SEAL.before()
            self._feed(msg.Sealed(tid, tuple(parts)))
            self._pusher.push(SealedTid(tid, tuple(parts)), {item.meta.part: item.data for item in memory})
            # The rows are awaited even when the time is over: an abort must find all it has to take back.
            await self._stager.store(memory, [tid])
            await SEAL.after()
            self._feed(msg.PersistedAtHome(tid))
            done, _ = await asyncio.wait([ready], timeout=max(0.0, timeout_s))
            if not done:
                self._feed(msg.Deadline(tid))
            return await ready
        finally:
            self._waiting.pop(str(tid), None)

    def acknowledged(self, held: Held) -> None:
        """A peer has answered a push."""
        self._feed(msg.Ack(held))

    def members(self, disks: Mapping[ReplicaId, str]) -> None:
        """The member list shows these disks of the other replicas (those struck or removed are left out)."""
        for replica in self._disks.keys() - disks.keys():
            self._feed(msg.DiskChanged(replica, None))
        for replica, disk in disks.items():
            if self._disks.get(replica) != disk:
                self._feed(msg.DiskChanged(replica, disk))
        self._disks = dict(disks)

    def release(self, tid: Tid) -> None:
        """The transaction is committed: the log brings it to whoever lacks it."""
        self._feed(msg.Decided(tid))
        self._pusher.decided(tid)

    def rolled_back(self, tid: Tid) -> None:
        """The transaction is rolled back: fetch no more of it, and tell those who may hold parts of it."""
        self._feed(msg.RolledBack(tid))
        self._fetcher.cancel([str(tid)])
        self._pusher.forget(tid)

    def _feed(self, event: msg.CopiesEvent) -> None:
        try:
            instructions = self._machine.step(event)
        except InvariantError as error:
            self._on_broken(error)
            raise
        for instruction in instructions:
            waiting = self._waiting.get(str(instruction.tid))
            if waiting is None or waiting.done():
                continue
            match instruction:
                case msg.Ready():
                    waiting.set_result(instruction.holders)
                case msg.NotEnough():
                    waiting.set_exception(_not_enough(instruction))
                case _:
                    assert_never(instruction)


def _not_enough(found: msg.NotEnough) -> NotEnoughReplicasError:
    missing = ", ".join(found.missing)
    text = (
        f"{found.tid} has {found.have} durable copies of {found.need} within the commit timeout, "
        f"{missing} did not confirm; it was rolled back: "
        "bring the replicas back, then run it again"
    )
    return NotEnoughReplicasError(text, have=found.have, need=found.need, missing=list(found.missing))
