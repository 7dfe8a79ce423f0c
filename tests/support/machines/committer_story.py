"""Stories of the committer: the commands of tests/testdata/committer, on the bench of the committer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

from tests.support.machines.committing import Bench, new_tree, proposal, records, tid
from tests.support.machines.stories import options_of
from tidelock.csnlog.core import committer_messages as msg
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.batch import LogLimits, Proposal
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.core.results import Committed, Ok, Reason, Refused
from tidelock.csnlog.core.store import Check, Create, Delete, Op, SetData

_REQUESTS: Final[dict[str, type[msg.Instruction]]] = {
    "commit": msg.SendCommit,
    "rollover": msg.SendRollover,
    "raise": msg.SendRaise,
    "nonce": msg.DrawNonce,
    "fence": msg.ReadFence,
    "epoch": msg.ReadEpoch,
    "log": msg.ReadLog,
}


class CommitterStory:
    """Tells one story of a committer, or of two that share a tree."""

    def __init__(self) -> None:
        self.bench = Bench(connect=False)
        self._told = 0
        self._view = self.bench.tree.copy()

    def __call__(self, words: list[str]) -> list[str]:
        """Run a command; return what the committer answered."""
        command, *rest = words
        method: Callable[[list[str]], list[str] | None] = getattr(self, f"do_{command}")
        shown = method(rest) or []
        said, self._told = self.bench.said[self._told :], len(self.bench.said)
        return [*map(_line, said), *shown]

    # ------------------------------------------------------------------------- the machine and its callers

    def do_start(self, words: list[str]) -> None:
        """``start [limit=n ...]``: a committer whose session has no connection yet."""
        limits = {name: int(value) for name, value in options_of(words).items()}
        self.bench, self._told = Bench(new_tree(), limits=LogLimits(**limits), connect=False), 0

    def do_connect(self, words: list[str]) -> None:
        """``connect [session]``: have a connection, by default in a new session."""
        self.bench.connect(int(words[0]) if words else None)

    def do_disconnect(self, _: list[str]) -> None:
        """``disconnect``."""
        self.bench.tell(msg.LinkChanged(connected=False, session=self.bench.session))

    def do_propose(self, words: list[str]) -> None:
        """``propose n ... [table@version ...] [label=x] [create=t] [change=t@version] [head=n]``."""
        self.bench.propose(*(_proposal(int(word), words) for word in words if word.isdigit()))

    def do_deadline(self, words: list[str]) -> None:
        """``deadline n``: the caller of a transaction stops waiting."""
        self.bench.tell(msg.DeadlinePassed(tid(int(words[0]))))

    def do_follow(self, words: list[str]) -> None:
        """``follow end [n@csn ...]``: the follower has read on, and has met these own transactions."""
        own = [word.split("@") for word in words[1:]]
        self.bench.tell(msg.Followed(Csn(int(words[0])), tuple((tid(int(n)), Csn(int(at))) for n, at in own)))

    def do_want(self, words: list[str]) -> None:
        """``want n``: another multi of this replica ended Unknown under fence n."""
        self.bench.tell(msg.FenceWanted(int(words[0])))

    def do_doubt(self, words: list[str]) -> None:
        """``doubt n``: another multi of this replica was refused because of its fence n."""
        self.bench.tell(msg.FenceDoubted(int(words[0])))

    def do_stop(self, words: list[str]) -> None:
        """``stop reason``."""
        self.bench.tell(msg.StopAsked(" ".join(words)))

    def do_resume(self, _: list[str]) -> None:
        """``resume``: the pause is over."""
        self.bench.resume()

    # ------------------------------------------------------------------------------------------- requests

    def do_serve(self, words: list[str]) -> None:
        """``serve``: one request; ``serve all``; ``serve until commit``; ``serve lagging``: from the view."""
        match words:
            case []:
                self.bench.serve()
            case ["all"]:
                self.bench.serve_all()
            case ["until", kind]:
                self.bench.serve_until(_REQUESTS[kind])
            case ["lagging"]:
                self.bench.serve(self._view)
            case _:
                raise AssertionError(words)

    def do_lose(self, words: list[str]) -> None:
        """``lose request`` or ``lose reply`` of the multi under way."""
        {"request": self.bench.lose_request, "reply": self.bench.lose_reply}[words[0]]()

    def do_delay(self, _: list[str]) -> None:
        """``delay``: the answer of the multi under way is lost, and it arrives with ``land``."""
        self.bench.delay()

    def do_land(self, _: list[str]) -> list[str]:
        """``land``: the oldest delayed multi arrives."""
        result = self.bench.land()
        if isinstance(result, Refused):
            return [f"the late multi is refused: {result.reason.value} of element {result.index}"]
        return ["the late multi is applied"]

    def do_refuse(self, words: list[str]) -> None:
        """``refuse reason [element]``: the store refuses the multi under way."""
        self.bench.answer_multi(Refused(Reason(words[0]), int(words[1]) if words[1:] else 0))

    def do_unread(self, words: list[str]) -> None:
        """``unread``: the read of the log fails; ``unread 99``: it shows an empty log, in session 99."""
        self.bench.request = None
        session = int(words[0]) if words else 0
        self.bench.tell(msg.LogRead({} if words else None, session))

    def do_moved(self, _: list[str]) -> None:
        """``moved``: the multi under way is applied, and its session has changed when the answer arrives."""
        self.bench.answer_multi(self.bench.apply(self.bench.ops()), session=0)

    def do_found(self, words: list[str]) -> None:
        """``found csn``: the multi under way is answered with this CSN."""
        self.bench.answer_multi(Ok((None, tree.record(Csn(int(words[0]))))))

    # ------------------------------------------------------------------------------------------ the others

    def do_view(self, _: list[str]) -> None:
        """``view``: remember ZooKeeper as it is now, for ``serve lagging``."""
        self._view = self.bench.tree.copy()

    def do_alter(self, words: list[str]) -> None:
        """``alter table``: another replica changes a table."""
        assert isinstance(self.bench.apply((SetData(tree.table(_table(words[0])), b"new"),)), Ok)

    def do_forget(self, _: list[str]) -> None:
        """``forget``: the session znode of this replica is deleted, as by a restored ensemble."""
        path = tree.session(self.bench.home)
        assert isinstance(self.bench.apply((Delete(path, self.bench.version(path)),)), Ok)

    def do_fence(self, words: list[str]) -> None:
        """``fence [nonce]``: another replica raises the fence of this one."""
        self.bench.fence_by_another(*words)

    def do_log(self, _: list[str]) -> list[str]:
        """``log``: show the records behind the first two."""
        return [
            f"{number}: {record.kind.value} {' '.join(_short(one.tid) for one in record.tids)}".rstrip()
            for number, record in records(self.bench.tree)[2:]
        ]

    def do_multi(self, _: list[str]) -> list[str]:
        """``multi``: show the elements of the multi under way."""
        return [_element(op) for op in self.bench.ops()]


def _proposal(number: int, words: list[str]) -> Proposal:
    options = options_of(words)
    ddl: list[Create | SetData] = []
    if name := options.get("create"):
        ddl.append(Create(tree.table(TableId(name)), b"{}"))
    if changed := options.get("change"):
        name, _, version = changed.partition("@")
        ddl.append(SetData(tree.table(_table(name)), b"v1", int(version)))
    tables = [word.split("@") for word in words if "@" in word and "=" not in word]
    head = options.get("head")
    return proposal(
        number,
        {_table(name): int(version) for name, version in tables},
        ddl=tuple(ddl),
        label=options.get("label"),
        head_version=None if head is None else int(head),
    )


def _table(name: str) -> TableId:
    return TableId(name if "." in name else f"d.{name}")


def _short(text: str) -> str:
    return text.rpartition("-")[2]


def _element(op: Op) -> str:
    match op:
        case Check(path, version):
            return f"check {path} at version {version}"
        case Create(path, _):
            return f"create {path}"
        case SetData(path, _, version):
            return f"set {path}" + ("" if version is None else f" at version {version}")
        case Delete(path, version):
            return f"delete {path} at version {version}"
        case _:
            assert_never(op)


def _line(instruction: msg.Instruction) -> str:
    match instruction:
        case msg.SendCommit(plan):
            return "send commit of " + " ".join(_short(item.tid) for item in plan.batch)
        case msg.SendRollover(rollover):
            return f"send roll-over of epoch {rollover.epoch}"
        case msg.SendRaise(ops):
            [op] = ops
            assert isinstance(op, SetData)
            return f"send raise of fence {op.version}"
        case msg.DrawNonce():
            return "draw nonce"
        case msg.ReadFence():
            return "read fence"
        case msg.ReadEpoch():
            return "read epoch"
        case msg.ReadLog(session):
            return f"read log in session {session}"
        case msg.AnswerCallers(one, Committed(at)):
            return f"{_short(one)} is committed at {at}"
        case msg.AnswerCallers(one, msg.Rejected(cause, detail)):
            return f"{_short(one)} is rejected: {cause.value} {detail}".rstrip()
        case msg.AnswerCallers(one, _):
            return f"{_short(one)} is undecided"
        case msg.FenceRaised(fence, _):
            return f"fence is {fence}"
        case msg.FenceLost():
            return "fence is lost"
        case msg.Fenced():
            return "fenced by another"
        case msg.Halted(reason):
            return f"halted: {reason}"
        case msg.RetryLater():
            return "pause"
        case _:
            assert_never(instruction)
