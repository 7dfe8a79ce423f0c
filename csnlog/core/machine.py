"""The common form of the state machines: events in, instructions out, a story when one is broken. Pure.

Only :meth:`Machine.step` changes a machine. A machine has no clock, thread, socket or randomness: a shell
runs its instructions and returns with events. Events are *commands* (a request, or something that has
happened) and *answers* (the result of an instruction). Both are type unions, so that every ``match`` on them
ends in ``assert_never``.

:meth:`Machine.snapshot` returns the whole state as one frozen, hashable value and :meth:`Machine.restore`
accepts it again, so that tests can explore every order of events with the very code that runs. Between two
snapshots the state is in private fields, since a new value for every change costs more than the step that
makes it (docs/adr/0014-one-form-for-machines.md has the figures).

Invariants are checked after every step: the constant-time ones always, all of them in a machine that is
``thorough``. A machine that breaks an invariant raises :class:`InvariantError` with its last steps. It must
not be used any more; its shell stops (I15).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import msgspec

from tidelock.errors import CorruptError

Event = TypeVar("Event")
Instruction = TypeVar("Instruction")
State = TypeVar("State")

#: Steps that a machine remembers for its story.
STORY_STEPS: Final = 100
#: Characters of one message in a story.
_MESSAGE_CHARS_MAX: Final = 300


class InvariantError(CorruptError):
    """A machine contradicts itself: its state is one that no correct history leads to.

    The details are ``machine`` (the name of its class) and ``story`` (the last steps, oldest first, a line
    for each event and each instruction).
    """

    @property
    def story(self) -> list[str]:
        """The last steps of the machine as lines of text, oldest first."""
        return list(self.details["story"])


class _Together(msgspec.Struct, frozen=True):
    """Events of one step in a story."""

    events: Sequence[object]


class Machine(ABC, Generic[Event, Instruction, State]):
    """The base of every state machine; see the module.

    A message that may be large has a property ``brief``: a small value that represents it in the story, so
    that the story does not keep the content of the message.

    Args:
        thorough: Check all invariants after every step, not only those that take constant time.
    """

    __slots__ = ("_story", "_thorough")

    def __init__(self, *, thorough: bool) -> None:
        self._thorough = thorough
        self._story: deque[tuple[object, Sequence[object]]] = deque(maxlen=STORY_STEPS)

    def step(self, *events: Event) -> tuple[Instruction, ...]:
        """Process events that are known together; return the instructions that follow the last one, in order.

        Raises:
            InvariantError: The machine contradicts itself.
        """
        said: tuple[Instruction, ...] = ()
        try:
            said = self._react(events)
            self._check_step()
            if self._thorough:
                self.check_invariants()
        except AssertionError as error:
            raise self._broken(events, said, str(error)) from error
        # Nearly every step has one event, so that case must be cheap.
        event = events[0]
        recorded = getattr(event, "brief", event) if len(events) == 1 else _Together(_briefly(events))
        self._story.append((recorded, _briefly(said) if said else said))
        return said

    @abstractmethod
    def snapshot(self) -> State:
        """Return the whole state as one immutable value, which can be compared and hashed."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Go back to a state that :meth:`snapshot` has returned."""

    @abstractmethod
    def check_invariants(self) -> None:
        """Raise AssertionError if the state is one that no correct history leads to."""

    @abstractmethod
    def _react(self, events: tuple[Event, ...]) -> tuple[Instruction, ...]:
        """Process the events, and return the instructions."""

    @abstractmethod
    def _check_step(self) -> None:
        """Raise AssertionError for a contradiction that can be seen in constant time."""

    def story(self) -> list[str]:
        """Return the last steps as lines of text, oldest first: ``>`` an event, ``<`` an instruction."""
        lines: list[str] = []
        for recorded, said in self._story:
            events = recorded.events if isinstance(recorded, _Together) else (recorded,)
            lines += [f"> {_text(one)}" for one in events]
            lines += [f"< {_text(one)}" for one in said]
        return lines

    def _broken(
        self, events: tuple[Event, ...], said: tuple[Instruction, ...], contradiction: str
    ) -> InvariantError:
        self._story.append((_Together(_briefly(events)), _briefly(said)))
        name = type(self).__name__
        return InvariantError(
            f"{name} contradicts itself: {contradiction}; this replica stops: keep its log, which "
            "has the last steps, and start the agent again",
            machine=name,
            story=self.story(),
        )


def _briefly(messages: Sequence[object]) -> Sequence[object]:
    """Return the messages or their ``brief`` values; of very many messages only the last."""
    if len(messages) > STORY_STEPS:
        messages = messages[-STORY_STEPS:]
    return [getattr(one, "brief", one) for one in messages]


def _text(message: object) -> str:
    text = repr(message)
    return text if len(text) <= _MESSAGE_CHARS_MAX else f"{text[:_MESSAGE_CHARS_MAX]}..."
