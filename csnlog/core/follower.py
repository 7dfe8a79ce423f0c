"""The follower: reads the log by number, in order, without a gap, forever. Pure.

A machine (:mod:`tidelock.csnlog.core.machine`); its messages are in
:mod:`tidelock.csnlog.core.follower_messages`.

**Promises.** It takes exactly the log after the start position: each record once, in order, across epochs
(I2). It never interprets NoNode as "aborted", "end of the epoch" or "skip" (F4, F9). A record that it cannot
read or cannot explain stops it there (I15).

**State.** :class:`FollowerState`: the access to ZooKeeper, the position in the log, the phase
(:mod:`tidelock.csnlog.core.phase`), the reads under way, and the records that were read or taken and not
handed over.

**Events.** Commands: the link, hints that a record may exist, the receiver that accepts more, a tick of the
clock. Answers to reads, probes and inquiries; several reads may be under way. **Instructions.** These
requests, the records that were taken, and deliveries, of which at most one is under way.

**Method.**

* It knows the number of the next record. While records stream in, it has up to ``read_ahead`` reads under
  way. At the end it rests: one request asks whether the next record exists and watches for it, so a quiet log
  costs two requests per record. Records that this replica wrote itself are not read back.
* An epoch ends at an END record, and nowhere else. The first record after it is number 0 of the next epoch.
* A watch is a hint. Every ``recheck_s`` a resting follower probes again. It then also asks whether the tail
  has passed it (too late: only a clone helps) and whether the directory holds more than it has read.
* A record that is missing although a later one exists is a gap. Reads that are under way together prove
  nothing: the record may have been created between them. So a chain of questions is asked one after the other
  in one session: the later record, the missing one, the tail. Tail above the next record: too late.
  Otherwise: stop, never skip (F21).
* At the start it reads the record at its position again, which tells where to go on when this was an END
  record. If it is missing, :mod:`tidelock.csnlog.core.anchor` decides.
* ZooKeeper may have been set back to an older state. So at the start, and over each new connection, nothing
  is taken before the record at the position was seen to be the one that was taken
  (:mod:`tidelock.csnlog.core.imprint`), or to be deleted below the tail. Another record, a missing one, and
  a zxid that goes back stop the follower. A directory with fewer records than were taken raises the question.

**Invariants.** The position never decreases. No more than ``read_ahead`` records are under way or wait. A
follower that probes or rests has no read under way. The phase follows its table.

**Not promised.** A tid can appear in the log twice only by a bug; the code that applies records ignores a tid
seen before. The follower does not say what "newest" is; see ``barrier`` in :mod:`tidelock.csnlog.log`.
"""

from __future__ import annotations

import enum
from typing import Final, assert_never

import msgspec

from tidelock.csnlog.core import anchor, phase
from tidelock.csnlog.core import follower_messages as msg
from tidelock.csnlog.core.committer_messages import LinkChanged, Resumed, RetryLater
from tidelock.csnlog.core.follower_messages import (
    Absent,
    Chain,
    ChainQuestion,
    Finding,
    Inquiry,
    Unreadable,
)
from tidelock.csnlog.core.ids import CSN_NONE, Csn, csn, epoch_of, sequence_of
from tidelock.csnlog.core.imprint import UNKNOWN, Imprint, another_record, missing_record, older_stamp
from tidelock.csnlog.core.machine import Machine
from tidelock.csnlog.core.model import LogRecord, Record, RecordKind
from tidelock.csnlog.core.phase import QUIET, STREAMING, TABLE, UNANCHORED, FollowerPhase, Sign

_GAP: Final = (
    "this record is missing although a later one exists: it was deleted, or something else than commit "
    "records was created in the directory of the log"
)
_BEHIND_END: Final = "this record stands behind the END record of its epoch"


def number_after(number: Csn, record: Record) -> Csn:
    """Return the number of the record that follows this one.

    Raises:
        ValueError: Numbers have run out (Z1).
    """
    if record.kind is RecordKind.END:
        return csn(epoch_of(number) + 1, 0)
    return csn(epoch_of(number), sequence_of(number) + 1)


class Access(enum.Enum):
    """Whether requests may be sent."""

    #: There is no connection.
    DOWN = "down"
    #: A request has failed, and the pause before the next request is not over.
    PAUSED = "paused"
    OPEN = "open"


#: Faster to look up than the member of the enum; every step needs it.
_OPEN: Final = Access.OPEN


class FollowerState(msgspec.Struct, frozen=True):
    """The whole state of a :class:`Follower`.

    Attributes:
        access: Whether requests may be sent.
        phase: What is known of the next record.
        position: The last record taken.
        last: Its imprint.
        proven: Whether ZooKeeper was seen to hold that record, or to have deleted it, over this connection.
        next: The number to be taken next; the start position until its record was read again.
        known_end: A record that certainly exists.
        window: Reads that are tried without knowing that the record exists; 1 = probe first.
        in_flight: Reads under way.
        buffer: Records that were read behind a record that was not, by number.
        behind: Records taken while the receiver has a delivery; None = the receiver has no delivery.
        inquiry: The question under way.
        numbers: Inquiries so far.
        tail: The tail as last read.
        counted: Children of the directory and next record at the last count that led to a listing.
        final: The reason why the follower has ended.
    """

    access: Access
    phase: FollowerPhase
    position: Csn
    last: Imprint
    proven: bool
    next: Csn
    known_end: Csn
    window: int
    in_flight: frozenset[Csn]
    buffer: tuple[tuple[Csn, LogRecord | Unreadable], ...]
    behind: tuple[LogRecord, ...] | None
    inquiry: Inquiry | None
    numbers: int
    tail: Csn
    counted: tuple[int, Csn]
    final: msg.TooLate | msg.Stopped | None


class Follower(Machine[msg.FollowEvent, msg.FollowInstruction, FollowerState]):
    """The state machine; see the module. The fields are those of :class:`FollowerState`.

    Args:
        position: The last record that was applied; the records after it are delivered.
        read_ahead: How many records are requested, or read and not handed over, at a time.
        last: The imprint of the record at the position.
        thorough: Check all invariants after every step.
    """

    __slots__ = (
        *(
            "access",
            "phase",
            "position",
            "last",
            "proven",
            "next",
            "known_end",
            "window",
            "in_flight",
            "buffer",
            "behind",
        ),
        *("inquiry", "numbers", "tail", "counted", "final", "_out", "_taken", "read_ahead"),
    )

    def __init__(
        self, position: Csn, read_ahead: int, *, last: Imprint = UNKNOWN, thorough: bool = True
    ) -> None:
        super().__init__(thorough=thorough)
        self.read_ahead: Final = read_ahead
        self.access = Access.DOWN
        self.phase = FollowerPhase.ANCHORING
        self.position = position
        self.last = last
        self.proven = False
        self.next = position
        self.known_end = CSN_NONE
        self.window = read_ahead
        self.in_flight: set[Csn] = set()
        self.buffer: dict[Csn, LogRecord | Unreadable] = {}
        self.behind: tuple[LogRecord, ...] | None = None
        self.inquiry: Inquiry | None = None
        self.numbers = 0
        self.tail = CSN_NONE
        self.counted: tuple[int, Csn] = (0, CSN_NONE)
        self.final: msg.TooLate | msg.Stopped | None = None
        self._out: list[msg.FollowInstruction] = []
        self._taken: list[LogRecord] = []

    def snapshot(self) -> FollowerState:
        """Return the whole state."""
        return FollowerState(
            access=self.access,
            phase=self.phase,
            position=self.position,
            last=self.last,
            proven=self.proven,
            next=self.next,
            known_end=self.known_end,
            window=self.window,
            in_flight=frozenset(self.in_flight),
            buffer=tuple(sorted(self.buffer.items(), key=_number)),
            behind=self.behind,
            inquiry=self.inquiry,
            numbers=self.numbers,
            tail=self.tail,
            counted=self.counted,
            final=self.final,
        )

    def restore(self, state: FollowerState) -> None:
        """Go back to a state that :meth:`snapshot` has returned."""
        self.access, self.phase = state.access, state.phase
        self.position, self.last, self.proven = state.position, state.last, state.proven
        self.next, self.known_end = state.next, state.known_end
        self.window, self.in_flight, self.buffer = state.window, set(state.in_flight), dict(state.buffer)
        self.behind, self.inquiry, self.numbers = state.behind, state.inquiry, state.numbers
        self.tail, self.counted, self.final = state.tail, state.counted, state.final

    @property
    def ready(self) -> tuple[LogRecord, ...]:
        """The records that were taken and are not handed over."""
        return self.behind or ()

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is one that no correct history leads to."""
        self._check_step()
        if self.final is None:
            passed = [number for number in self.buffer if number < self.next]
            assert not passed, f"the buffer holds {passed}, which stand before the next record {self.next}"

    def _check_step(self) -> None:
        assert self.position <= self.next, f"position {self.position} is behind the next record {self.next}"
        # Own commits far ahead may use up ``read_ahead``; then records are read one by one until these are
        # reached.
        held = len(self.in_flight) + len(self.buffer) + len(self.behind or ())
        assert held <= 2 * self.read_ahead + 1, f"{held} records are under way or wait"
        assert not self.in_flight or self.phase not in QUIET, f"a read is under way: {self.phase.value}"

    def _react(self, events: tuple[msg.FollowEvent, ...]) -> tuple[msg.FollowInstruction, ...]:
        for event in events:
            if self.final is None:
                try:
                    self._take(event)
                except ValueError as error:
                    self._stop(self.next, str(error))
            elif isinstance(event, msg.Delivered):
                self._delivered()
        if self._taken:
            self._hand_over()
        if self.final is None and self.access is _OPEN and self.inquiry is None:
            self._advance()
        out, self._out = self._out, []
        return tuple(out)

    # ------------------------------------------------------------------------------------------- events

    def _take(self, event: msg.FollowEvent) -> None:
        match event:
            case msg.Got(number, record):
                self.in_flight.discard(number)
                self._got(number, record, speculative=number > self.known_end)
            case msg.Delivered():
                self._delivered()
            case msg.Probed(number, exists):
                self._probed(number, exists)
            case msg.Poked(record):
                self._poked(record.csn, record)
            case msg.Missed(number):
                self.in_flight.discard(number)
                if number >= self.next:
                    self.window = 1
                    self._sees(Sign.MISSED_NEXT if number == self.next else Sign.MISSED_LATER)
            case msg.Woken(number):
                if number == self.next:
                    self._wake()
            case msg.Failed(number):
                self.in_flight.discard(number)
                self._retry_later()
            case msg.Learned(number, session, finding):
                self._learned(number, session, finding)
            case msg.Tick():
                at_rest = self.phase is FollowerPhase.RESTING and self.inquiry is None and self.proven
                if at_rest and self.access is not Access.DOWN:
                    self._ask(Chain.RECHECK, ChainQuestion.PROBE, self.next)
            case LinkChanged(connected, _):
                self.access = Access.OPEN if connected else Access.DOWN
                self._doubt()
                self._wake()
            case Resumed():
                if self.access is Access.PAUSED:
                    self.access = Access.OPEN
            case _:
                assert_never(event)

    def _sees(self, sign: Sign) -> None:
        following = TABLE.get((self.phase, sign))
        assert following is not None, f"{sign.value!r} cannot come while the follower is {self.phase.value!r}"
        self.phase = following

    def _wake(self) -> None:
        """Note that the next record may exist."""
        self._sees(Sign.HINT)
        if self.inquiry is not None and self.inquiry.chain is Chain.RECHECK:
            self.inquiry = None

    def _doubt(self) -> None:
        """Take nothing more before ZooKeeper was seen to hold the last record taken: it may be an older one.

        The records behind it are read again, since another history may have other ones.
        """
        self.proven = False
        self.buffer.clear()
        if self.inquiry is not None:
            self.inquiry = None

    def _poked(self, number: Csn, record: LogRecord) -> None:
        if number == self.position and self.last.differs(Imprint.of(record)):
            self._stop(number, another_record(number, here=self.last, there=Imprint.of(record)))
            return
        self.known_end = max(self.known_end, number)
        if number >= self.next:
            self._wake()
            # The record may be under way, since its watch fires before its commit is answered; this is
            # faster.
            if self._room() > 0 and self.phase not in UNANCHORED:
                self._got(number, record, speculative=False)

    def _probed(self, number: Csn, exists: bool | None) -> None:
        if exists is None:
            self._sees(Sign.PROBE_VOID)
            self._retry_later()
        elif number != self.next:
            self._sees(Sign.PROBE_VOID)
        elif exists:
            self.window = min(2, self.read_ahead)
            self._sees(Sign.PROBE_FOUND)
        else:
            self._sees(Sign.PROBE_FOUND_NONE)

    def _got(self, number: Csn, record: LogRecord | Unreadable, *, speculative: bool) -> None:
        if self.phase in UNANCHORED:
            self._drop_anchor(number, record)
            return
        if self.position < number < self.next:
            self._stop(number, _BEHIND_END)
        elif number >= self.next:
            self.buffer[number] = record
            if speculative and self.window > 1:
                self.window = min(2 * self.window, self.read_ahead)
        self._take_in_order()

    def _drop_anchor(self, number: Csn, record: LogRecord | Unreadable) -> None:
        """Process the record at the start position, which was read again: it determines the next number."""
        if number != self.position:
            return
        if isinstance(record, Unreadable):
            self._stop(number, record.reason)
        elif self.last.differs(Imprint.of(record)):
            self._stop(number, another_record(number, here=self.last, there=Imprint.of(record)))
        else:
            self._anchor(number_after(number, record.record))

    def _anchor(self, following: Csn) -> None:
        """Go on behind the position, which ZooKeeper holds as it was taken, or has deleted since."""
        if self.phase in UNANCHORED:
            self._sees(Sign.ANCHORED)
            self.next = following
        self.proven = True
        self._out.append(msg.Proven())
        self._take_in_order()

    def _take_in_order(self) -> None:
        place, first = len(self._out), len(self._taken)
        while self.proven and self.final is None and self.next in self.buffer:
            number, record = self.next, self.buffer.pop(self.next)
            if isinstance(record, Unreadable):
                self._stop(number, record.reason)
                break
            # Equal ones are those of a new log, which one multi makes.
            if record.stamp.zxid < self.last.zxid:
                self._stop(number, older_stamp(number, here=self.last.zxid, there=record.stamp.zxid))
                break
            self._taken.append(record)
            self.last = Imprint.of(record)
            self.position, self.next = number, number_after(number, record.record)
            self._sees(Sign.TAKEN)
            if self.next != number + 1 and (passed := [other for other in self.buffer if other < self.next]):
                self._stop(min(passed), _BEHIND_END)
        if len(self._taken) > first:
            # Taken records are reported even when the follower stops right behind them.
            self._out.insert(place, msg.Took(tuple(self._taken[first:])))

    def _hand_over(self) -> None:
        taken, self._taken = self._taken, []
        if self.behind is None:
            self.behind = ()
            self._out.append(msg.Deliver(tuple(taken)))
        else:
            self.behind = (*self.behind, *taken)

    def _delivered(self) -> None:
        """Hand over what was taken meanwhile: the receiver accepts more."""
        if self.behind:
            self._out.append(msg.Deliver(self.behind))
            self.behind = ()
        else:
            self.behind = None

    # ---------------------------------------------------------------------------------------- inquiries

    def _ask(self, chain: Chain, question: ChainQuestion, number: Csn, session: int = 0) -> None:
        self.numbers += 1
        self.inquiry = Inquiry(self.numbers, chain, question, number, session)
        self._out.append(msg.Inquire(self.numbers, question, number))

    def _learned(self, number: int, session: int, finding: Finding | None) -> None:
        inquiry = self.inquiry
        if inquiry is None or inquiry.number != number:
            return
        self.inquiry = None
        if finding is None or session == 0 or inquiry.session not in {0, session}:
            self._retry_later()
            return
        match inquiry.chain:
            case Chain.ANCHOR:
                self._learned_of_anchor(inquiry, session, finding)
            case Chain.GAP:
                self._learned_of_gap(inquiry, session, finding)
            case Chain.RECHECK:
                self._learned_at_rest(inquiry.question, session, finding)
            case _:
                assert_never(inquiry.chain)

    def _learned_of_anchor(self, inquiry: Inquiry, session: int, finding: Finding) -> None:
        """Continue the chain that explains the start position."""
        decision = anchor.decide(anchor.step_of(inquiry, self.position), self.position, finding)
        match decision:
            case anchor.ChainStep():
                self._ask(Chain.ANCHOR, *anchor.question_of(decision, self.position), session)
            case anchor.ChainEnd.BY_RECORD:
                assert isinstance(finding, LogRecord | Unreadable), f"{finding!r} is no record"
                self._drop_anchor(self.position, finding)
            case anchor.ChainEnd.SUCCESSOR:
                self._anchor(Csn(self.position + 1))
            case anchor.ChainEnd.NEXT_EPOCH:
                self._anchor(inquiry.csn)
            case anchor.ChainEnd.RESTORED:
                self._stop(self.position, missing_record(self.position))
            case anchor.ChainEnd.TOO_LATE:
                assert isinstance(finding, int), f"{finding!r} is no tail"
                self._too_late(Csn(finding))
            case _:
                assert_never(decision)

    def _learned_of_gap(self, inquiry: Inquiry, session: int, finding: Finding) -> None:
        """Continue the chain about a gap: the later record, the missing one, the tail."""
        if CSN_NONE < inquiry.csn < self.next:
            return  # an own commit was reported meanwhile, and the record in question has been taken
        match inquiry.question, finding:
            case ChainQuestion.RECORD, LogRecord() | Unreadable():
                self._got(inquiry.csn, finding, speculative=False)
                if self.final is None and inquiry.csn > self.next:
                    self._ask(Chain.GAP, ChainQuestion.RECORD, self.next, session)
            case ChainQuestion.RECORD, Absent() if inquiry.session:
                self._ask(Chain.GAP, ChainQuestion.TAIL, inquiry.csn, session)
            case ChainQuestion.RECORD, Absent():
                # Not even the later record is found: this server lags behind the one that showed it, or
                # ZooKeeper was set back.
                self._ask(Chain.GAP, ChainQuestion.BARRIER, inquiry.csn, session)
            case ChainQuestion.BARRIER, _:
                self._ask(Chain.GAP, ChainQuestion.RECORD, inquiry.csn, session)
            case ChainQuestion.TAIL, int(tail) if tail > self.next:
                self._too_late(Csn(tail))
            case ChainQuestion.TAIL, _ if inquiry.csn > self.next:
                self._stop(inquiry.csn, missing_record(inquiry.csn))
            case ChainQuestion.TAIL, _:
                self._stop(self.next, _GAP)

    def _learned_at_rest(self, question: ChainQuestion, session: int, finding: Finding) -> None:
        """Continue the chain of a resting follower: probe, tail, count, list."""
        match question, finding:
            case ChainQuestion.PROBE, bool(exists):
                if exists:
                    self._wake()
                else:
                    self._ask(Chain.RECHECK, ChainQuestion.TAIL, self.next, session)
            case ChainQuestion.TAIL, int(tail):
                self.tail = Csn(tail)
                if tail > self.next:
                    self._too_late(self.tail)
                else:
                    self._ask(Chain.RECHECK, ChainQuestion.COUNT, self.next, session)
            case ChainQuestion.COUNT, int(children):
                # Any number of the records below the tail may be deleted; so one listing for each count
                # decides.
                deleted = sequence_of(self.tail) if epoch_of(self.tail) == epoch_of(self.next) else 0
                counted, taken = (children, self.next), sequence_of(self.next) - deleted
                if children < taken:
                    self.proven = False
                elif children > taken and counted != self.counted:
                    self.counted = counted
                    self._ask(Chain.RECHECK, ChainQuestion.LIST, self.next, session)
            case ChainQuestion.LIST, tuple(numbers):
                later = [number for number in numbers if number >= sequence_of(self.next)]
                if later:
                    self._sees(Sign.LISTED)
                    self._ask(Chain.GAP, ChainQuestion.RECORD, csn(epoch_of(self.next), min(later)))

    def _too_late(self, tail: Csn) -> None:
        self.final = msg.TooLate(tail)
        self._out.append(self.final)

    def _stop(self, number: Csn, reason: str) -> None:
        self.final = msg.Stopped(number, reason)
        self._out.append(self.final)

    def _retry_later(self) -> None:
        if self.access is Access.OPEN:
            self.access = Access.PAUSED
        self._out.append(RetryLater())

    # ------------------------------------------------------------------------------------------ advance

    def _advance(self) -> None:
        """Request the next records if they may exist; else probe for the next one, and rest."""
        if not self.proven and self.phase not in UNANCHORED:
            self._ask(Chain.ANCHOR, *anchor.question_of(anchor.ChainStep.LOOK, self.position))
        elif self.phase in STREAMING:
            self._read_or_probe()
        elif self.phase in QUIET or self.in_flight:
            return
        elif self.phase in phase.MISSED:
            self._explain_missing()
        elif self.phase in phase.ANCHOR_MISSED:
            self._ask(Chain.ANCHOR, ChainQuestion.BARRIER, self.position)
        else:
            self._get(self.position)

    def _explain_missing(self) -> None:
        """Ask why the next record is missing if a later one exists in its epoch; else go on."""
        later = min(self.buffer, default=self.known_end)
        if later >= self.next and epoch_of(later) == epoch_of(self.next):
            self._ask(Chain.GAP, ChainQuestion.RECORD, later)
        else:
            self._sees(Sign.NO_GAP)
            self._read_or_probe()

    def _read_or_probe(self) -> None:
        if self.behind is not None and len(self.behind) >= self.read_ahead:
            return
        self._read_ahead()
        if not self.in_flight and self.next not in self.buffer:
            self._sees(Sign.PROBE)
            self._out.append(msg.Probe(self.next))

    def _read_ahead(self) -> None:
        guessed = self.window if self.window > 1 or self.phase is FollowerPhase.HINTED else 0
        top = self.next + guessed - 1
        if epoch_of(self.known_end) == epoch_of(self.next):
            top = max(top, self.known_end)
        room = self._room()
        number = self.next
        while number <= top and (room > 0 or not self.in_flight):
            if number not in self.in_flight and number not in self.buffer:
                self._get(number)
                room -= 1
            number = Csn(number + 1)

    def _room(self) -> int:
        """Return how many more records may be under way or wait here."""
        return self.read_ahead - len(self.in_flight) - len(self.buffer) - len(self.behind or ())

    def _get(self, number: Csn) -> None:
        self.in_flight.add(number)
        self._out.append(msg.Get(number))


def _number(item: tuple[Csn, object]) -> Csn:
    return item[0]
