"""The product's committer for the explorers: every state of it by a number, every step taken once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from tests.sim.explore.ensemble import Numbered
from tests.support.wall_clocks import NO_CLOCK
from tidelock.csnlog.core.batch import LogLimits
from tidelock.csnlog.core.committer import Committer, CommitterState
from tidelock.csnlog.core.committer_messages import (
    AnswerCallers,
    CommitDecision,
    DrawNonce,
    Event,
    Fenced,
    FenceLost,
    FenceRaised,
    Halted,
    Instruction,
    NonceDrawn,
    ReadEpoch,
    ReadFence,
    ReadLog,
    RetryLater,
    SendCommit,
    SendRaise,
    SendRollover,
)
from tidelock.csnlog.core.ids import ReplicaId
from tidelock.csnlog.core.model import SessionState
from tidelock.csnlog.core.store import Op


class CommitterRequest(NamedTuple):
    """The pending request of a committer: ``commit``, ``rollover`` or ``raise`` with its multi, or a read."""

    kind: str
    ops: tuple[Op, ...] = ()


class Said(NamedTuple):
    """The answers of a committer in one step."""

    request: CommitterRequest | None = None
    verdicts: tuple[tuple[str, CommitDecision], ...] = ()
    paused: bool = False
    fenced: bool = False
    halted: str = ""


class Committers:
    """All states of all committers that were met.

    Args:
        limits: The bounds of each.
        kind: The class to run; a planted bug may give another.
    """

    def __init__(self, limits: LogLimits, kind: type[Committer] = Committer) -> None:
        self._limits, self._kind = limits, kind
        self._states: Numbered[tuple[ReplicaId, CommitterState]] = Numbered()
        self._steps: dict[tuple[int, Hashable], tuple[int, Said]] = {}
        self._fences: dict[int, int | None] = {}

    def begin(self, home: ReplicaId, state: SessionState, fence: int) -> int:
        """Return the number of a committer that begins a life."""
        return self._save(self._kind(home, state, fence, self._limits))

    def at(self, number: int) -> Committer:
        """A committer in a state, to look at."""
        home, snapshot = self._states.values[number]
        machine = self._kind(home, SessionState(0, "", "", ""), 0, self._limits)
        machine.restore(snapshot)
        return machine

    def fence(self, number: int) -> int | None:
        """The fence that every multi of this process checks; None once it knows that it is fenced."""
        if number not in self._fences:
            machine = self.at(number)
            self._fences[number] = None if machine.fenced else machine.fence.version
        return self._fences[number]

    def step(self, number: int, key: Hashable, event: Event) -> tuple[int, Said]:
        """Take one event, known by its key; returns the state after it and what was said."""
        known = self._steps.get((number, key))
        if known is None:
            machine = self.at(number)
            said = self._step(machine, event)
            known = self._steps[number, key] = (self._save(machine), said)
        return known

    def _save(self, machine: Committer) -> int:
        return self._states.number((machine.home, machine.snapshot()))

    def _step(self, machine: Committer, event: Event) -> Said:
        said = Said()
        events = [event]
        while events:
            for instruction in machine.step(events.pop()):
                if isinstance(instruction, DrawNonce):
                    # A new one is drawn only when the last raise is confirmed, so the version tells it apart.
                    state = machine.fence.state
                    events.append(NonceDrawn(f"{machine.home}.{state.boot}.{machine.fence.version}"))
                else:
                    said = _noted(said, instruction)
        return said


def _noted(said: Said, instruction: Instruction) -> Said:
    match instruction:
        case AnswerCallers(tid, decision):
            return said._replace(verdicts=(*said.verdicts, (tid, decision)))
        case SendCommit(plan):
            return said._replace(request=CommitterRequest("commit", plan.ops(NO_CLOCK)))
        case SendRollover(rollover):
            return said._replace(request=CommitterRequest("rollover", rollover.ops(NO_CLOCK)))
        case SendRaise(ops):
            return said._replace(request=CommitterRequest("raise", ops))
        case ReadFence():
            return said._replace(request=CommitterRequest("read fence"))
        case ReadEpoch():
            return said._replace(request=CommitterRequest("read epoch"))
        case ReadLog():
            return said._replace(request=CommitterRequest("read log"))
        case RetryLater():
            return said._replace(paused=True)
        case Fenced():
            return said._replace(fenced=True)
        case Halted(reason):
            return said._replace(halted=reason)
        case FenceRaised() | FenceLost() | DrawNonce():
            return said
