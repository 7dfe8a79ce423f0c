"""The pure core of the way to a commit: how many durable copies a sealed transaction has, and who lags. Pure.

Events in, instructions out: ``step(event)`` returns a tuple of instructions for the shell and does nothing
else. No clock, no threads, no sockets, no files. The machine can be copied and turned into a hashable
value, so that an explorer can visit its states, and it checks its own invariants.

:class:`Copies` calls a transaction ready only when at least ``copies`` replicas, the home among them, hold
all its parts on the disks that the member list shows at that moment (rules seal, copies;
I4). It does not decide what is committed: that is the log's business. The way back from the log
is :mod:`tidelock.replication.core.prefix`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from tidelock.csnlog.core.ids import Csn, ReplicaId, Tid, epoch_of, sequence_of
from tidelock.replication.core.model import Held, PartMeta, Peer


@dataclass(frozen=True, slots=True)
class Sealed:
    """A transaction of this home takes no more statements; ``parts`` is everything that it adds."""

    tid: Tid
    parts: tuple[PartMeta, ...]


@dataclass(frozen=True, slots=True)
class PersistedAtHome:
    """Files, rows and prepared mark of the transaction are durable at its home."""

    tid: Tid


@dataclass(frozen=True, slots=True)
class Ack:
    """A peer says what it holds. It is a state: a later answer may take a transaction back."""

    held: Held


@dataclass(frozen=True, slots=True)
class DiskChanged:
    """``replicas/<id>/session`` shows this disk; None = no member any more, or struck."""

    replica: ReplicaId
    disk: str | None


@dataclass(frozen=True, slots=True)
class Deadline:
    """The commit timeout of the transaction is over."""

    tid: Tid


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The home has rolled the transaction back."""

    tid: Tid


@dataclass(frozen=True, slots=True)
class Decided:
    """The log has decided the transaction; nobody waits for its copies any more."""

    tid: Tid


@dataclass(frozen=True, slots=True)
class Ready:
    """The transaction may go into a commit record, with these holders (home first)."""

    tid: Tid
    holders: tuple[ReplicaId, ...]


@dataclass(frozen=True, slots=True)
class NotEnough:
    """The transaction did not get its copies in time: ``have`` of ``need``; ``missing`` did not confirm."""

    tid: Tid
    have: int
    need: int
    missing: tuple[ReplicaId, ...]


CopiesEvent = Sealed | PersistedAtHome | Ack | DiskChanged | Deadline | RolledBack | Decided
CopiesInstruction = Ready | NotEnough


@dataclass(frozen=True, slots=True)
class _Copying:
    tid: Tid
    persisted: bool = False
    acks: frozenset[tuple[ReplicaId, str]] = frozenset()
    phase: Literal["waiting", "ready", "short"] = "waiting"


class Copies:
    """Counts the durable copies of this home's sealed transactions.

    Args:
        home: This replica.
        copies: Durable copies that a commit needs, the home's own among them. Nothing but an operator
            lowers it.
        disks: The other members with the disk that each has now.
    """

    def __init__(self, home: ReplicaId, copies: int, disks: Mapping[ReplicaId, str]) -> None:
        self.home = home
        self.copies = copies
        self._disks = {replica: disk for replica, disk in disks.items() if replica != home}
        self._open: dict[str, _Copying] = {}

    def step(self, event: CopiesEvent) -> tuple[CopiesInstruction, ...]:
        """Take one event; events about transactions that are not open here change nothing."""
        match event:
            case Sealed(tid, parts):
                return self._sealed(tid, parts)
            case PersistedAtHome(tid):
                return self._change(str(tid), persisted=True)
            case Ack(held):
                return self._acked(held)
            case DiskChanged(replica, disk):
                return self._disk_changed(replica, disk)
            case Deadline(tid):
                return self._deadline(str(tid))
            case RolledBack(tid) | Decided(tid):
                self._open.pop(str(tid), None)
                return ()
            case _:
                assert_never(event)

    def holders(self, tid: Tid) -> tuple[ReplicaId, ...]:
        """Return the replicas whose copies of an open transaction count now, the home first."""
        state = self._open.get(str(tid))
        return () if state is None else self._holders(state)

    def copy(self) -> Copies:
        """Return an independent machine in the same state."""
        twin = Copies(self.home, self.copies, self._disks)
        twin._open = dict(self._open)
        return twin

    def state(self) -> tuple[object, ...]:
        """Return the state as one hashable value."""
        return (frozenset(self._disks.items()), frozenset(self._open.values()))

    def check_invariants(self) -> None:
        """Raise AssertionError if the machine contradicts itself."""
        for text, state in self._open.items():
            assert str(state.tid) == text, state
            assert all(replica != self.home for replica, _ in state.acks), state
            enough = state.persisted and len(self._holders(state)) >= self.copies
            assert state.phase != "waiting" or not enough, state

    def _sealed(self, tid: Tid, parts: tuple[PartMeta, ...]) -> tuple[CopiesInstruction, ...]:
        if str(tid) in self._open:
            return ()
        if not parts:  # nothing to copy: a definition travels in the record itself
            self._open[str(tid)] = _Copying(tid, persisted=True, phase="ready")
            return (Ready(tid, (self.home,)),)
        self._open[str(tid)] = _Copying(tid)
        return ()

    def _acked(self, held: Held) -> tuple[CopiesInstruction, ...]:
        if held.replica == self.home:
            return ()
        ack = (held.replica, held.disk)
        for text in held.refused:
            if (state := self._open.get(text)) is not None:
                self._open[text] = replace(state, acks=state.acks - {ack})
        done: list[CopiesInstruction] = []
        for text in held.held:
            if (state := self._open.get(text)) is not None:
                done += self._change(text, acks=state.acks | {ack})
        return tuple(done)

    def _disk_changed(self, replica: ReplicaId, disk: str | None) -> tuple[CopiesInstruction, ...]:
        if disk is None or replica == self.home:
            self._disks.pop(replica, None)
        else:
            self._disks[replica] = disk
        return tuple(done for text in list(self._open) for done in self._change(text))

    def _deadline(self, text: str) -> tuple[CopiesInstruction, ...]:
        state = self._open.get(text)
        if state is None or state.phase != "waiting":
            return ()
        self._open[text] = replace(state, phase="short")
        holders = self._holders(state)
        missing = sorted({self.home, *self._disks}.difference(holders))
        return (NotEnough(state.tid, len(holders), self.copies, tuple(missing)),)

    def _change(
        self,
        text: str,
        *,
        persisted: bool | None = None,
        acks: frozenset[tuple[ReplicaId, str]] | None = None,
    ) -> tuple[CopiesInstruction, ...]:
        state = self._open.get(text)
        if state is None:
            return ()
        state = replace(
            state,
            persisted=state.persisted if persisted is None else persisted,
            acks=state.acks if acks is None else acks,
        )
        holders = self._holders(state)
        ready = state.phase == "waiting" and state.persisted and len(holders) >= self.copies
        self._open[text] = replace(state, phase="ready") if ready else state
        return (Ready(state.tid, holders),) if ready else ()

    def _holders(self, state: _Copying) -> tuple[ReplicaId, ...]:
        acked = sorted(replica for replica, disk in state.acks if self._disks.get(replica) == disk)
        return (self.home, *acked) if state.persisted else tuple(acked)


def csns_behind(csn: Csn, end: Csn, epoch_limit: int) -> int:
    """Return how many records ``csn`` is behind ``end``, at least 0; an epoch has ``epoch_limit`` records."""
    return max(0, (epoch_of(end) - epoch_of(csn)) * epoch_limit + sequence_of(end) - sequence_of(csn))


def lagging(peers: Iterable[Peer], own: Csn, max_lag: int, *, epoch_limit: int) -> tuple[ReplicaId, ...]:
    """Return the replicas, alive and not struck, that are more than ``max_lag`` CSNs behind ``own``.

    A home delays new commits while there is one (rule apply).
    """
    return tuple(
        peer.replica
        for peer in peers
        if peer.alive and not peer.struck and csns_behind(peer.snapshot, own, epoch_limit) > max_lag
    )
