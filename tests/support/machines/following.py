"""A bench for the follower: a log in memory, and a test that decides which answers come, and when.

It carries requests out only when told to, and checks the machine's invariants after every step.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.log_records import in_log
from tidelock.csnlog.core.committer_messages import LinkChanged, Resumed, RetryLater
from tidelock.csnlog.core.follower import Follower
from tidelock.csnlog.core.follower_messages import (
    ABSENT,
    ChainQuestion,
    Deliver,
    Delivered,
    Failed,
    Finding,
    FollowEvent,
    FollowInstruction,
    Get,
    Got,
    Inquire,
    Learned,
    Missed,
    Poked,
    Probe,
    Probed,
    Stopped,
    Tick,
    Took,
    TooLate,
    Unreadable,
    Woken,
)
from tidelock.csnlog.core.ids import Csn, ReplicaId, csn, epoch_of, sequence_of
from tidelock.csnlog.core.model import LogRecord, Record, RecordKind, TidRecord

R1 = ReplicaId("r1")


def commit(name: object) -> Record:
    """Return a record with one transaction of this name."""
    return Record(RecordKind.COMMIT, R1, 0, (TidRecord(str(name)),))


END = Record(RecordKind.END, R1, 0)
GENESIS = Record(RecordKind.GENESIS, R1, 0)


class FollowBench:
    """A follower, the log that it follows, and its instructions so far."""

    def __init__(self, position: int = 1, *, log: int = 1, read_ahead: int = 8, connect: bool = True) -> None:
        self.log: dict[Csn, Record | Unreadable] = {}
        self.extra_children = 0
        self.tail = Csn(0)
        self.last = Csn(-1)
        self.extend(*([GENESIS] * 2), *(commit(n) for n in range(2, log + 1)))
        self.machine = Follower(Csn(position), read_ahead)
        self.session = 1
        self.said: list[FollowInstruction] = []
        self.requests: list[Get | Probe | Inquire] = []
        self.history: list[Get | Probe | Inquire] = []
        self.delivery: tuple[LogRecord, ...] | None = None
        self.took: list[LogRecord] = []
        self.delivered: list[LogRecord] = []
        self.final: TooLate | Stopped | None = None
        self.paused = False
        if connect:
            self.tell(LinkChanged(connected=True, session=1))

    # ------------------------------------------------------------------------------------- the log

    def extend(self, *records: Record | Unreadable) -> list[Csn]:
        """Append records after the last one."""
        numbers = []
        for record in records:
            before = self.log.get(self.last)
            closed = isinstance(before, Record) and before.kind is RecordKind.END
            self.last = csn(epoch_of(self.last) + 1, 0) if closed else Csn(self.last + 1)
            self.log[self.last] = record
            numbers.append(self.last)
        return numbers

    def delete_below(self, tail: int) -> None:
        """Move the tail, and delete the records below it."""
        self.tail = Csn(tail)
        self.log = {number: record for number, record in self.log.items() if number >= tail}

    # --------------------------------------------------------------------------------- the machine

    def tell(self, event: FollowEvent) -> None:
        """Give an event to the machine and note its instructions."""
        instructions: tuple[FollowInstruction, ...] = self.machine.step(event)
        self.said += instructions
        for instruction in instructions:
            match instruction:
                case Get() | Probe() | Inquire():
                    self.requests.append(instruction)
                    self.history.append(instruction)
                case Took(records):
                    self.took += records
                case Deliver(records):
                    assert self.delivery is None, "a delivery before the last one was taken"
                    self.delivery = records
                case RetryLater():
                    self.paused = True
                case TooLate() | Stopped():
                    assert self.final is None, f"{instruction} after {self.final}"
                    self.final = instruction
        saved = self.machine.snapshot()
        other = Follower(Csn(0), self.machine.read_ahead)
        other.restore(saved)
        assert other.snapshot() == saved
        self.machine = other

    def serve(self, request: Get | Probe | Inquire | None = None, *, fail: bool = False) -> None:
        """Answer a request, by default the oldest one, from the log as it is now."""
        request = request or self.requests[0]
        self.requests.remove(request)
        match request:
            case Get(number) if fail:
                self.tell(Failed(number))
            case Get(number):
                record = self.log.get(number)
                self.tell(Missed(number) if record is None else Got(number, self.read(number)))
            case Probe(number):
                self.tell(Probed(number, None if fail else number in self.log))
            case Inquire(number, question, about):
                finding = None if fail else self.find_out(question, about)
                self.tell(Learned(number, self.session, finding))

    def find_out(self, question: ChainQuestion, about: Csn) -> Finding:
        """Return the answer to a question from the present log."""
        siblings = tuple(sequence_of(n) for n in self.log if epoch_of(n) == epoch_of(about))
        match question:
            case ChainQuestion.BARRIER:
                return True
            case ChainQuestion.RECORD:
                return self.read(about) if about in self.log else ABSENT
            case ChainQuestion.PROBE:
                return about in self.log
            case ChainQuestion.TAIL:
                return self.tail
            case ChainQuestion.COUNT:
                return len(siblings) + self.extra_children if self.has_epoch(epoch_of(about)) else ABSENT
            case ChainQuestion.LIST:
                return siblings

    def read(self, number: Csn) -> LogRecord | Unreadable:
        """Return what a read of this record finds."""
        record = self.log[number]
        return in_log(number, record) if isinstance(record, Record) else record

    def has_epoch(self, epoch: int) -> bool:
        """Return whether the directory of an epoch exists: the END record before it made it."""
        last = self.log.get(self.last)
        closed = isinstance(last, Record) and last.kind is RecordKind.END
        return epoch <= epoch_of(self.last) + (1 if closed else 0)

    def take_delivery(self) -> None:
        """Report that the receiver has accepted the records handed to it."""
        assert self.delivery is not None
        delivery, self.delivery = self.delivery, None
        self.delivered += delivery
        self.tell(Delivered())

    def run(self, *, order: Callable[[list[Get | Probe | Inquire]], int] = lambda _: 0) -> None:
        """Answer all requests, take all deliveries and end all pauses until the machine rests."""
        for _ in range(10_000):
            if self.requests:
                self.serve(self.requests[order(self.requests)])
            elif self.delivery is not None:
                self.take_delivery()
            elif self.paused and self.final is None:
                self.resume()
            else:
                return
        raise AssertionError(f"the follower does not come to rest: {self.requests}")

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Answer requests until a condition holds."""
        for _ in range(1000):
            if condition():
                return
            self.serve()
        raise AssertionError("it never comes")

    def resume(self) -> None:
        """A pause ends."""
        self.paused = False
        self.tell(Resumed())

    def wake(self) -> None:
        """The watch on the next record fires."""
        self.tell(Woken(self.machine.next))

    def poke(self, number: Csn) -> None:
        """This replica has committed at a CSN."""
        record = self.log[number]
        assert isinstance(record, Record)
        self.tell(Poked(in_log(number, record)))

    def tick(self) -> None:
        """The periodic look."""
        self.tell(Tick())

    def new_session(self) -> None:
        """A new session replaces the old one."""
        self.session += 1
        self.tell(LinkChanged(connected=True, session=self.session))

    # ------------------------------------------------------------------------------- what was said

    def asked(self) -> list[str]:
        """Return all requests since the last call, as short text."""
        texts = []
        for request in self.history:
            name = request.question.value if isinstance(request, Inquire) else type(request).__name__.lower()
            texts.append(f"{name} {request.csn}")
        self.history.clear()
        return texts

    def followed(self) -> list[Csn]:
        """CSNs taken so far; asserts that what was delivered is a beginning of it."""
        assert self.delivered == self.took[: len(self.delivered)]
        return [one.csn for one in self.took]
