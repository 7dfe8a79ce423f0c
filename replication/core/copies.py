"""Durable copies: the number that a sealed transaction has. Pure.

A machine (:mod:`tidelock.csnlog.core.machine`); its messages are in
:mod:`tidelock.replication.core.messages`.

**Promises.** :class:`Copies` calls a transaction ready only when at least ``copies`` replicas, the home
among them, hold all its parts on the disks that the member list shows at that moment (rules seal,
copies; I4). It names the version of ``replicas`` at which it has counted, which the commit checks. It does
not decide what is committed: the log does. The other direction, from the log to the
replica, is :mod:`tidelock.replication.core.prefix`.

**State.** :class:`CopiesState`: the rules of counting, and for each open transaction the replicas that have
acknowledged it, and whether it was reported as ready or short.

**Events.** The steps of a transaction at its home, the acknowledgements of peers, changes of the rules, and
the refusal of a commit that was counted under former rules. **Instructions.** A transaction is ready, or did
not get its copies in time; each is issued once for each count.

**Invariants.** A transaction that waits does not have enough copies. The home acknowledges nothing: its own
copy is the one that it has persisted.
"""

from __future__ import annotations

import enum
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from tidelock.csnlog.core.ids import ReplicaId, Tid
from tidelock.csnlog.core.machine import Machine
from tidelock.replication.core import messages as msg
from tidelock.replication.core.model import CountedCopies, CountingRules, Held, PartMeta


class CopyStage(enum.Enum):
    """The last report about a transaction."""

    WAITING = "waiting"
    READY = "ready"
    SHORT = "short"


class TransactionCopies(msgspec.Struct, frozen=True):
    """An open transaction of this home.

    Attributes:
        tid: The transaction.
        persisted: Its parts are durable here.
        acks: The replicas that have acknowledged it, each with its disk.
        stage: The last report about it.
        above: It is counted at a version of ``replicas`` above this one only.
    """

    tid: Tid
    persisted: bool = False
    acks: frozenset[tuple[ReplicaId, str]] = frozenset()
    stage: CopyStage = CopyStage.WAITING
    above: int = -1


class CopiesState(msgspec.Struct, frozen=True):
    """The whole state of a :class:`Copies`.

    Attributes:
        rules: What decides whose copies count.
        open: The open transactions, in the order of their tids: their order of arrival does not matter.
    """

    rules: CountingRules
    open: tuple[TransactionCopies, ...]


class Copies(Machine[msg.CopiesEvent, msg.CopiesInstruction, CopiesState]):
    """The count of durable copies of this home's sealed transactions.

    Args:
        home: This replica.
        rules: What decides whose copies count, and how many are needed; only an operator lowers that.
        thorough: Check all invariants after every step.
    """

    __slots__ = ("_open", "_places", "_rules", "home")

    def __init__(self, home: ReplicaId, rules: CountingRules, *, thorough: bool = True) -> None:
        super().__init__(thorough=thorough)
        self.home: Final = home
        self._open: dict[str, TransactionCopies] = {}
        self._rules = rules
        self._places = dict(rules.places)

    def snapshot(self) -> CopiesState:
        """Return the whole state."""
        opened = sorted(self._open.values(), key=lambda one: one.tid)
        return CopiesState(self._rules, tuple(opened))

    def restore(self, state: CopiesState) -> None:
        """Go back to a state that :meth:`snapshot` has returned."""
        self._rules, self._places = state.rules, dict(state.rules.places)
        self._open = {str(one.tid): one for one in state.open}

    def would_count(self, replica: ReplicaId, disk: str) -> bool:
        """Return whether a copy there is one more than the home's own: another group, and the disk of now."""
        return self._disk_of(replica) == disk and self._places[replica].group != self._rules.home

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is one that no correct history leads to."""
        self._check_step()
        for text, state in self._open.items():
            assert str(state.tid) == text, f"{state.tid} is known as {text}"
            assert all(replica != self.home for replica, _ in state.acks), f"the home acknowledged {text}"
            enough = self._has_enough(state)
            assert state.stage is not CopyStage.WAITING or not enough, f"{text} waits, and has enough copies"

    def _check_step(self) -> None:
        assert self.home not in self._places, "the home counts as its own peer"

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
            case msg.RulesChanged(rules):
                self._rules, self._places = rules, dict(rules.places)
                return tuple(done for text in list(self._open) for done in self._change(text))
            case msg.CountAgain(tid, above):
                return self._count_again(str(tid), above)
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
            return (msg.Ready(tid, CountedCopies((self.home,), self._rules.version)),)
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

    def _count_again(self, text: str, above: int) -> tuple[msg.CopiesInstruction, ...]:
        state = self._open.get(text)
        if state is None or state.stage is CopyStage.WAITING:
            return ()
        self._open[text] = replace(state, stage=CopyStage.WAITING, above=above)
        return self._change(text)

    def _deadline(self, text: str) -> tuple[msg.CopiesInstruction, ...]:
        state = self._open.get(text)
        if state is None or state.stage is not CopyStage.WAITING:
            return ()
        self._open[text] = replace(state, stage=CopyStage.SHORT)
        holders = self._holders(state)
        missing = tuple(sorted({self.home, *self._places}.difference(holders)))
        return (msg.NotEnough(state.tid, self._count(holders), self._rules.copies, missing),)

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
        ready = state.stage is CopyStage.WAITING and self._has_enough(state)
        self._open[text] = replace(state, stage=CopyStage.READY) if ready else state
        counted = CountedCopies(self._holders(state), self._rules.version)
        return (msg.Ready(state.tid, counted),) if ready else ()

    def _has_enough(self, state: TransactionCopies) -> bool:
        return (
            state.persisted
            and self._rules.version > state.above
            and self._count(self._holders(state)) >= self._rules.copies
        )

    def _holders(self, state: TransactionCopies) -> tuple[ReplicaId, ...]:
        """Return the replicas whose copies count under the present rules, the home first."""
        acked = sorted(replica for replica, disk in state.acks if self._disk_of(replica) == disk)
        return (self.home, *acked) if state.persisted else tuple(acked)

    def _disk_of(self, replica: ReplicaId) -> str | None:
        place = self._places.get(replica)
        return None if place is None else place.disk

    def _count(self, holders: tuple[ReplicaId, ...]) -> int:
        """Return how many copies these are: those of one group count once."""
        return len({self._rules.home if one == self.home else self._places[one].group for one in holders})
