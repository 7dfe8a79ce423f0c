"""The product's follower and executed prefix for the explorers: each step of a state is taken once."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from tests.sim.explore.ensemble import Numbered
from tidelock.csnlog.core.follower import Follower, FollowerState
from tidelock.csnlog.core.follower_messages import (
    Failed,
    FollowEvent,
    FollowInstruction,
    Get,
    Got,
    Inquire,
    Learned,
    Missed,
    Probe,
    Probed,
)
from tidelock.csnlog.core.ids import CSN_NONE, Csn
from tidelock.csnlog.core.imprint import Imprint
from tidelock.csnlog.core.model import LogRecord
from tidelock.replication.core.messages import PrefixEvent, PrefixInstruction
from tidelock.replication.core.prefix import Prefix, PrefixState

Asked = Get | Probe | Inquire


class Followers:
    """All states of the follower that were met.

    The numbers of its inquiries only tell them apart, so they are given again in every state: otherwise no
    state would ever come back.
    """

    def __init__(self, read_ahead: int) -> None:
        self._read_ahead = read_ahead
        self._states: Numbered[FollowerState] = Numbered()
        self._steps: dict[tuple[int, FollowEvent], tuple[FollowerState, tuple[FollowInstruction, ...]]] = {}

    def begin(self, position: Csn, last: Imprint) -> int:
        """Return the number of a follower that starts behind a record, which has this imprint."""
        return self._states.number(Follower(position, self._read_ahead, last=last).snapshot())

    def at(self, number: int) -> Follower:
        """A follower in a state."""
        machine = Follower(CSN_NONE, self._read_ahead)
        machine.restore(self._states.values[number])
        return machine

    def step(
        self, number: int, event: FollowEvent, asked: tuple[Asked, ...]
    ) -> tuple[int, tuple[Asked, ...], tuple[FollowInstruction, ...]]:
        """Take one event; returns the state after it, all that is asked then, and what else was said."""
        known = self._steps.get((number, event))
        if known is None:
            machine = self.at(number)
            said = machine.step(event)
            known = self._steps[number, event] = (machine.snapshot(), said)
        state, said = known
        state, asked = _renumbered(state, (*asked, *(one for one in said if isinstance(one, Asked))))
        others: tuple[FollowInstruction, ...] = tuple(one for one in said if not isinstance(one, Asked))
        return self._states.number(state), asked, others


def _renumbered(state: FollowerState, asked: tuple[Asked, ...]) -> tuple[FollowerState, tuple[Asked, ...]]:
    inquiry = state.inquiry
    numbers = {one.number for one in asked if isinstance(one, Inquire)}
    if inquiry is not None:
        numbers.add(inquiry.number)
    new = {number: place for place, number in enumerate(sorted(numbers), 1)}
    if inquiry is not None:
        inquiry = replace(inquiry, number=new[inquiry.number])
    state = replace(state, numbers=len(new), inquiry=inquiry)
    return state, tuple(
        replace(one, number=new[one.number]) if isinstance(one, Inquire) else one for one in asked
    )


class PrefixSaid(NamedTuple):
    """The state of the prefix after a step, and what it said."""

    number: int
    said: tuple[PrefixInstruction, ...]


class Prefixes:
    """All states of the executed prefix that were met."""

    def __init__(self, apply_records_max: int) -> None:
        self._apply_records_max = apply_records_max
        self._states: Numbered[PrefixState] = Numbered()
        self._steps: dict[tuple[int, tuple[PrefixEvent, ...]], PrefixSaid] = {}

    def begin(self, applied: Csn) -> int:
        """Return the number of a prefix that has this snapshot CSN."""
        return self._states.number(self._machine(applied).snapshot())

    def at(self, number: int) -> Prefix:
        """A prefix in a state."""
        machine = self._machine(CSN_NONE)
        machine.restore(self._states.values[number])
        return machine

    def step(self, number: int, *events: PrefixEvent) -> PrefixSaid:
        """Take events that are known together."""
        known = self._steps.get((number, events))
        if known is None:
            machine = self.at(number)
            said = machine.step(*events)
            known = self._steps[number, events] = PrefixSaid(self._states.number(machine.snapshot()), said)
        return known

    def _machine(self, applied: Csn) -> Prefix:
        return Prefix(applied, 0, apply_records_max=self._apply_records_max)


def failure(asked: Asked, session: int) -> FollowEvent:
    """Return the event by which the shell reports a failed read."""
    match asked:
        case Get(number):
            return Failed(number)
        case Probe(number):
            return Probed(number, None)
    return Learned(asked.number, session, None)


def short(value: object) -> str:
    """A request or an answer, in words."""
    match value:
        case Get(number):
            return f"get {number}"
        case Probe(number):
            return f"probe for {number}"
        case Inquire(_, question, about):
            return f"{question.value} {about}"
        case Got(_, record):
            return short(record) if isinstance(record, LogRecord) else "unreadable"
        case Missed() | Probed(_, False):
            return "not there"
        case Probed():
            return "there"
        case Learned(_, _, finding):
            return short(finding) if isinstance(finding, LogRecord) else str(finding)
        case LogRecord():
            return value.record.kind.value
    return str(value)
