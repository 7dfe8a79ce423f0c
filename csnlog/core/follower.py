"""The follower: reads the log by number, in order, without a gap, for ever. Pure.

Pure: events in, instructions out (:mod:`tidelock.csnlog.core.follower_messages`).

**Promises.** What it takes is exactly the log after the start position: each record once, in order, across
epochs (I2). It never takes NoNode for "aborted", "end of the epoch" or "skip" (F4, F9). What
it cannot read or cannot explain stops it there (I15).

**How.**

* It knows the number of the next record. While records stream in it has up to ``read_ahead`` reads under way.
  At the end it
  rests: one request asks whether the next record exists and watches for it, so a quiet log costs two requests
  per record. Records that this replica wrote itself are not read back.
* An epoch ends where an END record stands, and nowhere else. The first record after it is number 0 of the
  next epoch.
* A watch is a hint. Every ``relook_s`` a resting follower looks again, and asks then whether the tail has
  passed it (too
  late: only a clone helps) and whether the directory holds more than it has read.
* A record that is missing although a later one exists is a gap. Reads that are under way together prove
  nothing: the record may
  have been created between them. So a chain of questions is asked one after the other in one session: the
  later record, the missing one, the tail. Tail above the own place: too late. Otherwise: stop, never skip
  (F21).
* At the start it reads the record at its position again. That tells where to go on when this was an END
  record, and if it is
  missing behind a write barrier, with the tail below it, then ZooKeeper is older than this replica: stop.

**Not promised.** A tid may stand in the log twice only by a bug; whoever applies records ignores a tid seen
before. The follower does not say what "newest" is; see ``barrier`` in :mod:`tidelock.csnlog.log`.
"""

from __future__ import annotations

from typing import Final

from tidelock.csnlog.core.committer_messages import LinkChanged, Resumed, RetryLater
from tidelock.csnlog.core.follower_messages import (
    Absent,
    Deliver,
    Delivered,
    Failed,
    Finding,
    FollowEvent,
    FollowInstruction,
    Get,
    Got,
    Inquire,
    Inquiry,
    Learned,
    Look,
    Looked,
    Missed,
    Poked,
    Question,
    Stopped,
    Tick,
    Took,
    TooLate,
    Unreadable,
    Woken,
)
from tidelock.csnlog.core.ids import CSN_NONE, Csn, csn, epoch_of, sequence_of
from tidelock.csnlog.core.model import Kind, LogRecord, Record

_RESTORED: Final = (
    "the log lacks this record, which this replica has applied: "
    "ZooKeeper was emptied or restored from an older state"
)
_GAP: Final = (
    "this record is missing although a later one exists: it was deleted, or something else than commit "
    "records was created in the directory of the log"
)

_BEHIND_END: Final = "this record stands behind the END record of its epoch"


def number_after(number: Csn, record: Record) -> Csn:
    """The number of the record that follows this one; ValueError when numbers have run out (Z1)."""
    if record.kind is Kind.END:
        return csn(epoch_of(number) + 1, 0)
    return csn(epoch_of(number), sequence_of(number) + 1)


class Follower:
    """The state machine; see the module. ``step`` is its only way to change.

    Args:
        position: The last record that was applied; what follows it is delivered.
        read_ahead: How many records are requested, or read and not handed over, at a time.
    """

    _STATE = (
        *("connected", "session", "paused", "position", "next", "anchored", "known_end", "window", "eager"),
        *("flying", "missing", "looking", "resting", "ready", "delivering"),
        *("inquiry", "numbers", "tail", "counted", "final"),
    )
    __slots__ = (*_STATE, "_out", "buffer", "read_ahead")

    def __init__(self, position: Csn, read_ahead: int) -> None:
        self.read_ahead: Final = read_ahead
        self.connected = False
        self.session = 0
        self.paused = False
        #: The last record taken, and the number to be taken next; both the start position until that was read
        #: again.
        self.position = position
        self.next = position
        self.anchored = False
        #: A record that certainly exists.
        self.known_end = CSN_NONE
        #: Reads that are tried without knowing that the record exists; 1 = look first.
        self.window = read_ahead
        #: Read the next record without looking first: something said that it may be there.
        self.eager = False
        self.flying: frozenset[Csn] = frozenset()
        #: The next record was not there when it was read.
        self.missing = False
        self.looking = False
        self.resting = False
        #: Read, but behind a record that is not.
        self.buffer: dict[Csn, Record | Unreadable] = {}
        #: Taken, but not handed over.
        self.ready: tuple[LogRecord, ...] = ()
        self.delivering = False
        self.inquiry: Inquiry | None = None
        self.numbers = 0
        #: The tail as last read.
        self.tail = CSN_NONE
        #: (children, next) of the last count that led to a listing.
        self.counted: tuple[int, Csn] = (0, CSN_NONE)
        self.final: TooLate | Stopped | None = None
        self._out: list[FollowInstruction] = []

    def snapshot(self) -> tuple[object, ...]:
        """Return the whole state: comparable, and immutable throughout."""
        return (
            *(getattr(self, name) for name in self._STATE),
            tuple(sorted(self.buffer.items(), key=_number)),
        )

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Go back to a state that :meth:`snapshot` has returned."""
        for name, value in zip(self._STATE, snapshot, strict=False):
            setattr(self, name, value)
        buffer = snapshot[-1]
        assert isinstance(buffer, tuple)
        self.buffer = dict(buffer)

    def step(self, event: FollowEvent) -> tuple[FollowInstruction, ...]:
        """Take one event and return what is to be done, in this order."""
        if isinstance(event, Delivered):
            self.delivering = False
        elif self.final is None:
            try:
                self._take(event)
            except ValueError as error:
                self._stop(self.next, str(error))
        self._hand_over()
        if self.final is None and self.connected and not self.paused and self.inquiry is None:
            self._advance()
        out, self._out = self._out, []
        return tuple(out)

    def check_invariants(self) -> None:
        """Raise AssertionError where the state is none that a correct history leads to."""
        assert self.position <= self.next
        assert self.final or all(number >= self.next for number in self.buffer), "behind the next record"
        # Own commits far ahead may fill the room; then records are read one by one until they are reached.
        assert self._room() >= -self.read_ahead - 1, "more under way than is allowed"
        assert not (self.resting and self.looking)
        assert self.delivering or not self.ready

    # ------------------------------------------------------------------------------------------- events

    def _take(self, event: FollowEvent) -> None:
        match event:
            case Got(number, record):
                self.flying -= {number}
                self._got(number, record, speculative=number > self.known_end)
            case Missed(number):
                self.flying -= {number}
                if number >= self.next:
                    self.window, self.eager = 1, False
                    self.missing = self.missing or number == self.next
            case Failed(number):
                self.flying -= {number}
                self._retry_later()
            case Looked(number, exists):
                self._looked(number, exists)
            case Woken(number) if number == self.next:
                self._wake()
            case Poked(number, record):
                self.known_end = max(self.known_end, number)
                if number >= self.next:
                    self._wake()
                    # It may be under way, since its watch fires before its commit is answered; this is
                    # faster.
                    if self._room() > 0 and self.anchored:
                        self._got(number, record, speculative=False)
            case Learned(number, session, finding):
                self._learned(number, session, finding)
            case Tick() if self.resting and self.inquiry is None and self.connected:
                self._ask("relook", Question.LOOK, self.next)
            case LinkChanged(connected, session):
                self.connected, self.session, self.paused = connected, session, False
                self._wake()
            case Resumed():
                self.paused = False

    def _wake(self) -> None:
        """The next record may be there."""
        self.resting, self.eager = False, True
        if self.inquiry is not None and self.inquiry.chain == "relook":
            self.inquiry = None

    def _looked(self, number: Csn, exists: bool | None) -> None:
        self.looking = False
        if exists is None:
            self._retry_later()
        elif number == self.next and exists:
            self.window, self.eager = min(2, self.read_ahead), True
        elif number == self.next and not self.eager:
            self.resting = True

    def _got(self, number: Csn, record: Record | Unreadable, *, speculative: bool) -> None:
        if not self.anchored:
            self._drop_anchor(number, record)
            return
        if self.position < number < self.next:
            self._stop(number, _BEHIND_END)
        elif number >= self.next:
            self.buffer[number] = record
            if speculative and self.window > 1:
                self.window = min(2 * self.window, self.read_ahead)
        self._take_in_order()

    def _drop_anchor(self, number: Csn, record: Record | Unreadable) -> None:
        """The record at the start position was read again: now the next number is known."""
        if number != self.position:
            return
        if isinstance(record, Unreadable):
            self._stop(number, record.reason)
            return
        self._anchor(number_after(number, record))

    def _anchor(self, following: Csn) -> None:
        self.anchored, self.missing, self.next = True, False, following

    def _take_in_order(self) -> None:
        taken: list[LogRecord] = []
        while self.final is None and self.next in self.buffer:
            number, record = self.next, self.buffer.pop(self.next)
            if isinstance(record, Unreadable):
                self._stop(number, record.reason)
                break
            taken.append(LogRecord(number, record))
            self.position, self.next = number, number_after(number, record)
            self.missing, self.eager = False, False
            if behind := [other for other in self.buffer if other < self.next]:
                self._stop(min(behind), _BEHIND_END)
        if taken:
            self.ready = (*self.ready, *taken)
            # What was taken is told even when the follower stops right behind it.
            self._out.insert(0, Took(tuple(taken)))

    def _hand_over(self) -> None:
        if self.ready and not self.delivering:
            ready, self.ready, self.delivering = self.ready, (), True
            self._out.append(Deliver(ready))

    # ---------------------------------------------------------------------------------------- inquiries

    def _ask(self, chain: str, question: Question, number: Csn, session: int = 0) -> None:
        self.numbers += 1
        self.inquiry = Inquiry(self.numbers, chain, question, number, session)
        self._out.append(Inquire(self.numbers, question, number))

    def _learned(self, number: int, session: int, finding: Finding | None) -> None:
        inquiry = self.inquiry
        if inquiry is None or inquiry.number != number:
            return
        self.inquiry = None
        if finding is None or session == 0 or inquiry.session not in {0, session}:
            self._retry_later()
        elif inquiry.chain == "anchor":
            self._learned_of_anchor(inquiry, session, finding)
        elif inquiry.chain == "gap":
            self._learned_of_gap(inquiry, session, finding)
        else:
            self._learned_at_rest(inquiry.question, session, finding)

    def _learned_of_anchor(self, inquiry: Inquiry, session: int, finding: Finding) -> None:
        """Barrier, record at the start position, tail; the record behind it, the next epoch."""
        successor = Csn(self.position + 1)
        match inquiry.question, finding:
            case Question.BARRIER, _:
                self._ask("anchor", Question.RECORD, self.position, session)
            case Question.RECORD, Record() | Unreadable() if inquiry.csn == self.position:
                self._drop_anchor(self.position, finding)
            case Question.RECORD, Absent() if inquiry.csn == self.position:
                self._ask("anchor", Question.TAIL, self.position, session)
            case Question.TAIL, int(tail) if tail <= self.position:
                self._stop(self.position, _RESTORED)
            case Question.TAIL, int(tail) if tail > successor:
                self._too_late(Csn(tail))
            case Question.TAIL, _:
                # All replicas had it, so it could be deleted. Was it the END record of its epoch? If not, and
                # there is a next epoch, then a record must follow it.
                self._ask("anchor", Question.RECORD, successor, session)
            case Question.RECORD, Absent():
                self._ask("anchor", Question.COUNT, csn(epoch_of(self.position) + 1, 0), session)
            case Question.COUNT, int():
                self._anchor(inquiry.csn)
            case _:
                self._anchor(successor)

    def _learned_of_gap(self, inquiry: Inquiry, session: int, finding: Finding) -> None:
        """A later record, the next one, tail."""
        if CSN_NONE < inquiry.csn < self.next:
            return  # an own commit was heard of meanwhile, and what was asked about has been taken
        match inquiry.question, finding:
            case Question.RECORD, Record() | Unreadable():
                self._got(inquiry.csn, finding, speculative=False)
                if self.final is None and inquiry.csn > self.next:
                    self._ask("gap", Question.RECORD, self.next, session)
            case Question.RECORD, Absent() if inquiry.session:
                self._ask("gap", Question.TAIL, inquiry.csn, session)
            case Question.RECORD, Absent():
                # Not even the later record is there: this server lags behind the one that showed it.
                self._ask("gap", Question.TAIL, CSN_NONE, session)
            case Question.TAIL, int(tail) if tail > self.next:
                self._too_late(Csn(tail))
            case Question.TAIL, _ if inquiry.csn == CSN_NONE:
                self._retry_later()
            case Question.TAIL, _:
                self._stop(self.next, _GAP)

    def _learned_at_rest(self, question: Question, session: int, finding: Finding) -> None:
        """Look, tail, count, list."""
        match question, finding:
            case Question.LOOK, bool(exists):
                if exists:
                    self._wake()
                else:
                    self._ask("relook", Question.TAIL, self.next, session)
            case Question.TAIL, int(tail):
                self.tail = Csn(tail)
                if tail > self.next:
                    self._too_late(self.tail)
                else:
                    self._ask("relook", Question.COUNT, self.next, session)
            case Question.COUNT, int(children):
                # Those below the tail may be deleted, any number of them; so one listing for each count
                # tells.
                deleted = sequence_of(self.tail) if epoch_of(self.tail) == epoch_of(self.next) else 0
                counted = (children, self.next)
                if children > sequence_of(self.next) - deleted and counted != self.counted:
                    self.counted = counted
                    self._ask("relook", Question.LIST, self.next, session)
            case Question.LIST, tuple(numbers):
                later = [number for number in numbers if number >= sequence_of(self.next)]
                if later:
                    self.resting = False
                    self._ask("gap", Question.RECORD, csn(epoch_of(self.next), min(later)))

    def _too_late(self, tail: Csn) -> None:
        self.final = TooLate(tail)
        self._out.append(self.final)

    def _stop(self, number: Csn, reason: str) -> None:
        self.final = Stopped(number, reason)
        self._out.append(self.final)

    def _retry_later(self) -> None:
        self.paused = True
        self._out.append(RetryLater())

    # ------------------------------------------------------------------------------------------ advance

    def _advance(self) -> None:
        """Ask for the next records, if they may be there; else look whether they are, and rest."""
        if not self.anchored:
            if self.missing and not self.flying:
                self._ask("anchor", Question.BARRIER, self.position)
            elif not self.flying:
                self._get(self.position)
            return
        if self.missing:
            if self.flying:
                return
            later = min(self.buffer, default=self.known_end)
            if later >= self.next and epoch_of(later) == epoch_of(self.next):
                self._ask("gap", Question.RECORD, later)
                return
            self.missing = False
        if not (self.resting or self.looking or len(self.ready) >= self.read_ahead):
            self._read_ahead()
            if not self.flying and self.next not in self.buffer:
                self.looking = True
                self._out.append(Look(self.next))

    def _read_ahead(self) -> None:
        guessed = self.window if self.window > 1 or self.eager else 0
        top = self.next + guessed - 1
        if epoch_of(self.known_end) == epoch_of(self.next):
            top = max(top, self.known_end)
        room = self._room()
        number = self.next
        while number <= top and (room > 0 or not self.flying):
            if number not in self.flying and number not in self.buffer:
                self._get(number)
                room -= 1
            number = Csn(number + 1)

    def _room(self) -> int:
        """How many records more may be under way or wait here."""
        return self.read_ahead - len(self.flying) - len(self.buffer) - len(self.ready)

    def _get(self, number: Csn) -> None:
        self.flying |= {number}
        self._out.append(Get(number))


def _number(item: tuple[Csn, object]) -> Csn:
    return item[0]
