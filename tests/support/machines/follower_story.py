"""Stories of the follower: the commands of tests/testdata/follower, on the bench of the follower."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import assert_never

from tests.support.machines.following import END, FollowBench, commit
from tests.support.machines.stories import options_of
from tidelock.csnlog.core import follower_messages as msg
from tidelock.csnlog.core.committer_messages import LinkChanged, RetryLater
from tidelock.csnlog.core.ids import Csn, epoch_of, sequence_of
from tidelock.csnlog.core.ids import csn as make_csn
from tidelock.csnlog.core.model import Record, RecordKind


class FollowerStory:
    """Tells one story of a follower."""

    def __init__(self) -> None:
        self.bench = FollowBench(connect=False)
        self._told = 0

    def __call__(self, words: list[str]) -> list[str]:
        """Run a command; return what the follower answered."""
        command, *rest = words
        method: Callable[[list[str]], list[str] | None] = getattr(self, f"do_{command}")
        shown = method(rest) or []
        said, self._told = self.bench.said[self._told :], len(self.bench.said)
        return [*map(_line, said), *shown]

    # ------------------------------------------------------------------------------------------- the log

    def do_start(self, words: list[str]) -> None:
        """``start [position=n] [log=n] [read_ahead=n]``: a follower without a connection."""
        options = {name: int(value) for name, value in options_of(words).items()}
        self.bench, self._told = FollowBench(options.pop("position", 1), **options, connect=False), 0

    def do_write(self, words: list[str]) -> list[str]:
        """``write commit|end|unreadable ...``: append records after the last one."""
        kinds: dict[str, Record | msg.Unreadable] = {
            "commit": commit("x"),
            "end": END,
            "unreadable": msg.Unreadable("upgrade needed"),
        }
        return [f"the log has {_names(self.bench.extend(*(kinds[word] for word in words)))}"]

    def do_put(self, words: list[str]) -> None:
        """``put n ...``: a record at this number, wherever the log ends."""
        for word in words:
            self.bench.log[_number(word)] = commit(word)

    def do_remove(self, words: list[str]) -> None:
        """``remove n ...``: the record at this number is deleted."""
        for word in words:
            del self.bench.log[_number(word)]

    def do_delete(self, words: list[str]) -> None:
        """``delete n``: the tail moves to n, and the records below are deleted."""
        self.bench.delete_below(_number(words[0]))

    def do_tail(self, words: list[str]) -> None:
        """``tail n``: the tail moves to n, and the records below are not deleted yet."""
        self.bench.tail = _number(words[0])

    def do_stranger(self, _: list[str]) -> None:
        """``stranger``: a child that is no record is created in the directory of the log."""
        self.bench.extra_children += 1

    # -------------------------------------------------------------------------------------- what happens

    def do_connect(self, _: list[str]) -> None:
        """``connect``: have a connection, in the present session."""
        self.bench.tell(LinkChanged(connected=True, session=self.bench.session))

    def do_disconnect(self, _: list[str]) -> None:
        """``disconnect``."""
        self.bench.tell(LinkChanged(connected=False, session=self.bench.session))

    def do_session(self, _: list[str]) -> None:
        """``session``: a new session replaces the old one."""
        self.bench.new_session()

    def do_wake(self, _: list[str]) -> None:
        """``wake``: the watch on the next record fires."""
        self.bench.wake()

    def do_poke(self, words: list[str]) -> None:
        """``poke n``: this replica has committed at n."""
        self.bench.poke(_number(words[0]))

    def do_tick(self, _: list[str]) -> None:
        """``tick``: the periodic probe."""
        self.bench.tick()

    def do_resume(self, _: list[str]) -> None:
        """``resume``: the pause is over."""
        self.bench.resume()

    def do_deliver(self, _: list[str]) -> None:
        """``deliver``: the receiver has accepted the records handed to it."""
        self.bench.take_delivery()

    def do_serve(self, words: list[str]) -> None:
        """``serve [n]``: answer so many requests, the oldest first."""
        for _ in range(int(words[0]) if words else 1):
            self.bench.serve()

    def do_fail(self, _: list[str]) -> None:
        """``fail``: the oldest request fails."""
        self.bench.serve(fail=True)

    def do_run(self, words: list[str]) -> None:
        """``run``: answer everything until the follower rests; ``run until question``: until it asks."""
        if words:
            self.bench.run_until(lambda: any(isinstance(one, msg.Inquire) for one in self.bench.requests))
        else:
            self.bench.run()

    def do_followed(self, _: list[str]) -> list[str]:
        """``followed``: show all records that were taken, and the phase."""
        return [_names(self.bench.followed()) or "nothing", self.bench.machine.phase.value]


def _number(text: str) -> Csn:
    epoch, _, sequence = text.rpartition(":")
    return make_csn(int(epoch or 0), int(sequence))


def _name(number: Csn) -> str:
    epoch = epoch_of(number)
    return f"{epoch}:{sequence_of(number)}" if epoch else str(number)


def _names(numbers: Iterable[Csn]) -> str:
    return " ".join(map(_name, numbers))


def _line(instruction: msg.FollowInstruction) -> str:
    match instruction:
        case msg.Get(number):
            return f"get {_name(number)}"
        case msg.Probe(number):
            return f"probe {_name(number)}"
        case msg.Inquire(_, question, about):
            return f"ask {question.value} {_name(about)}"
        case msg.Proven():
            return "proven"
        case msg.Took(records):
            return "took " + " ".join(
                _name(one.csn) + ("" if one.record.kind is RecordKind.COMMIT else f" {one.record.kind.value}")
                for one in records
            )
        case msg.Deliver(records):
            return f"deliver {_names(one.csn for one in records)}"
        case msg.TooLate(tail):
            return f"too late: the tail is {_name(tail)}"
        case msg.Stopped(number, reason):
            return f"stopped at {_name(number)}: {reason}"
        case RetryLater():
            return "pause"
        case _:
            assert_never(instruction)
