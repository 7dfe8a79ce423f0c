"""Durable copies: the number that a sealed transaction has. Pure.

A machine (:mod:`tidelock.csnlog.core.machine`); its messages are in
:mod:`tidelock.replication.core.messages`.

**Promises.** :class:`Copies` calls a transaction ready only when at least ``copies`` replicas, the home
among them, hold all its parts on the disks that the member list shows at that moment (rules seal,
copies; I4). It does not decide what is committed: the log does. The other direction, from the log to the
replica, is :mod:`tidelock.replication.core.prefix`.

**State.** :class:`CopiesState`: the disks of the other members, and for each open transaction the replicas
that have acknowledged it, and whether it was reported as ready or short.

**Events.** The steps of a transaction at its home, the acknowledgements of peers, and changes of their disks.
**Instructions.** A transaction is ready, or did not get its copies in time; each is issued once.

**Invariants.** A transaction that waits does not have enough copies. The home acknowledges nothing: its own
copy is the one that it has persisted.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, assert_never

from tidelock.csnlog.core.ids import ReplicaId, Tid
from tidelock.csnlog.core.machine import Machine
from tidelock.replication.core import messages as msg
from tidelock.replication.core.model import Held, PartMeta


class CopyStage(enum.Enum):
    """The last report about a transaction."""

    WAITING = "waiting"
    READY = "ready"
    SHORT = "short"


@dataclass(frozen=True, slots=True)
class TransactionCopies:
    """An open transaction of this home.

    Attributes:
        tid: The transaction.
        persisted: Its parts are durable here.
        acks: The replicas that have acknowledged it, each with its disk.
        stage: The last report about it.
    """

    tid: Tid
    persisted: bool = False
    acks: frozenset[tuple[ReplicaId, str]] = frozenset()
    stage: CopyStage = CopyStage.WAITING


@dataclass(frozen=True, slots=True)
class CopiesState:
    """The whole state of a :class:`Copies`.

    Attributes:
        disks: The disk of each other member.
        open: The open transactions, in the order of their tids: their order of arrival does not matter.
    """

    disks: tuple[tuple[ReplicaId, str], ...]
    open: tuple[TransactionCopies, ...]


class Copies(Machine[msg.CopiesEvent, msg.CopiesInstruction, CopiesState]):
    """The count of durable copies of this home's sealed transactions.

    Args:
        home: This replica.
        copies: Durable copies that a commit needs, the home's own among them. Only an operator lowers it.
        disks: The other members, each with its present disk.
        thorough: Check all invariants after every step.
    """

    __slots__ = ("_disks", "_open", "copies", "home")

    def __init__(
        self, home: ReplicaId, copies: int, disks: Mapping[ReplicaId, str], *, thorough: bool = True
    ) -> None:
        super().__init__(thorough=thorough)
        self.home: Final = home
        self.copies: Final = copies
        self._disks = {replica: disk for replica, disk in disks.items() if replica != home}
        self._open: dict[str, TransactionCopies] = {}

    def holders(self, tid: Tid) -> tuple[ReplicaId, ...]:
        """Return the replicas whose copies of an open transaction count now, the home first."""
        state = self._open.get(str(tid))
        return () if state is None else self._holders(state)

    def snapshot(self) -> CopiesState:
        """Return the whole state."""
        opened = sorted(self._open.values(), key=lambda one: one.tid)
        return CopiesState(tuple(sorted(self._disks.items())), tuple(opened))

    def restore(self, state: CopiesState) -> None:
        """Go back to a state that :meth:`snapshot` has returned."""
        self._disks = dict(state.disks)
        self._open = {str(one.tid): one for one in state.open}

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is one that no correct history leads to."""
        self._check_step()
        for text, state in self._open.items():
            assert str(state.tid) == text, f"{state.tid} is known as {text}"
            assert all(replica != self.home for replica, _ in state.acks), f"the home acknowledged {text}"
            enough = state.persisted and len(self._holders(state)) >= self.copies
            assert state.stage is not CopyStage.WAITING or not enough, f"{text} waits, and has enough copies"

    def _check_step(self) -> None:
        assert self.home not in self._disks, "the home counts as its own peer"

    def _react(self, events: tuple[msg.CopiesEvent, ...]) -> tuple[msg.CopiesInstruction, ...]:
        """Process the events; an event about a transaction that is not open here changes nothing."""
        if len(events) == 1:
            return self._take(events[0])
        return tuple(said for event in events for said in self._take(event))

    def _take(self, event: msg.CopiesEvent) -> tuple[msg.CopiesInstruction, ...]:
        match event:
            case msg.TransactionSealed(tid, parts):
                return self._sealed(tid, parts)
            case msg.PersistedAtHome(tid):
                return self._change(str(tid), persisted=True)
            case msg.Ack(held):
                return self._acked(held)
            case msg.DiskChanged(replica, disk):
                return self._disk_changed(replica, disk)
            case msg.Deadline(tid):
                return self._deadline(str(tid))
            case msg.RolledBack(tid) | msg.TransactionDecided(tid):
                self._open.pop(str(tid), None)
                return ()
            case _:
                assert_never(event)

    def _sealed(self, tid: Tid, parts: tuple[PartMeta, ...]) -> tuple[msg.CopiesInstruction, ...]:
        if str(tid) in self._open:
            return ()
        if not parts:  # nothing to copy: a definition is in the record itself
            self._open[str(tid)] = TransactionCopies(tid, persisted=True, stage=CopyStage.READY)
            return (msg.Ready(tid, (self.home,)),)
        self._open[str(tid)] = TransactionCopies(tid)
        return ()

    def _acked(self, held: Held) -> tuple[msg.CopiesInstruction, ...]:
        if held.replica == self.home:
            return ()
        ack = (held.replica, held.disk)
        for text in held.refused:
            if (state := self._open.get(text)) is not None:
                self._open[text] = replace(state, acks=state.acks - {ack})
        done: list[msg.CopiesInstruction] = []
        for text in held.held:
            if (state := self._open.get(text)) is not None:
                done += self._change(text, acks=state.acks | {ack})
        return tuple(done)

    def _disk_changed(self, replica: ReplicaId, disk: str | None) -> tuple[msg.CopiesInstruction, ...]:
        if disk is None or replica == self.home:
            self._disks.pop(replica, None)
        else:
            self._disks[replica] = disk
        return tuple(done for text in list(self._open) for done in self._change(text))

    def _deadline(self, text: str) -> tuple[msg.CopiesInstruction, ...]:
        state = self._open.get(text)
        if state is None or state.stage is not CopyStage.WAITING:
            return ()
        self._open[text] = replace(state, stage=CopyStage.SHORT)
        holders = self._holders(state)
        missing = sorted({self.home, *self._disks}.difference(holders))
        return (msg.NotEnough(state.tid, len(holders), self.copies, tuple(missing)),)

    def _change(
        self,
        text: str,
        *,
        persisted: bool | None = None,
        acks: frozenset[tuple[ReplicaId, str]] | None = None,
    ) -> tuple[msg.CopiesInstruction, ...]:
        state = self._open.get(text)
        if state is None:
            return ()
        state = replace(
            state,
            persisted=state.persisted if persisted is None else persisted,
            acks=state.acks if acks is None else acks,
        )
        holders = self._holders(state)
        ready = state.stage is CopyStage.WAITING and state.persisted and len(holders) >= self.copies
        self._open[text] = replace(state, stage=CopyStage.READY) if ready else state
        return (msg.Ready(state.tid, holders),) if ready else ()

    def _holders(self, state: TransactionCopies) -> tuple[ReplicaId, ...]:
        acked = sorted(replica for replica, disk in state.acks if self._disks.get(replica) == disk)
        return (self.home, *acked) if state.persisted else tuple(acked)
