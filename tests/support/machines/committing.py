"""A bench for the committer: one replica's machine, a tree of znodes, and a test that decides what gets lost.

It carries out the machine's requests as the shell does, but only when told to, and checks the machine's
invariants, and that its state can be saved and restored, after every step.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.wall_clocks import NO_CLOCK
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.batch import LogLimits, Proposal
from tidelock.csnlog.core.committer import Committer
from tidelock.csnlog.core.committer_messages import (
    AnswerCallers,
    CommitDecision,
    CommitEnded,
    DrawNonce,
    EpochRead,
    Event,
    Fenced,
    FenceLost,
    FenceRaised,
    FenceRead,
    Halted,
    Instruction,
    LinkChanged,
    LogRead,
    MultiResult,
    NonceDrawn,
    Propose,
    RaiseEnded,
    ReadEpoch,
    ReadFence,
    ReadLog,
    ReadResult,
    Resumed,
    RetryLater,
    RolloverEnded,
    SendCommit,
    SendRaise,
    SendRollover,
)
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId, csn, epoch_of
from tidelock.csnlog.core.model import Record, RecordKind, SessionState, TidRecord
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Create, Op, SetData
from tidelock.csnlog.testing.memory_tree import ZnodeTree

R1, R2 = ReplicaId("r1"), ReplicaId("r2")
ORDERS, ITEMS = TableId("d.orders"), TableId("d.items")
LOST = Unknown("lost")
WRITES = (SendCommit, SendRollover, SendRaise)


def new_tree(*replicas: ReplicaId) -> ZnodeTree:
    """A cluster's tree with these replicas begun at boot 1, fence 0, and the tables orders and items."""
    made = ZnodeTree()
    genesis = codec.encode_record(Record(RecordKind.GENESIS, R1, 0))
    ops: list[Op] = [
        *(Create(path) for path in ("csn", "replicas", "tables", "labels", tree.HEAD, tree.epoch_dir(0))),
        Create(tree.EPOCH, codec.encode_epoch(0)),
        *(Create(path, codec.encode_csn(Csn(0))) for path in (tree.TAIL, tree.HORIZON)),
        *(Create(tree.record_prefix(0), genesis, sequential=True) for _ in range(2)),
        *(Create(tree.table(name)) for name in (ORDERS, ITEMS)),
    ]
    for name in replicas or (R1, R2):
        ops += [Create(tree.replica(name)), Create(tree.session(name), codec.encode_session(begun(name)))]
    result, _ = made.apply(ops, 0)
    assert isinstance(result, Ok), result
    return made


def begun(replica: ReplicaId, boot: int = 1) -> SessionState:
    """Return the data that the start of an agent has written to its session znode."""
    return SessionState(boot, f"disk-{replica}", f"start-{replica}-{boot}", "serving")


def proposal(
    counter: int, tables: Mapping[TableId, int] | None = None, *, home: ReplicaId = R1, **more: object
) -> Proposal:
    """Return a small transaction, known by its counter; see :func:`tid`."""
    record = TidRecord(tid(counter, home), label=more.get("label"))  # type: ignore[arg-type]
    return Proposal(record, tables or {}, **more)  # type: ignore[arg-type]


def tid(counter: int, home: ReplicaId = R1) -> str:
    """Return the textual tid of a small transaction."""
    return f"1-{home}-1-{counter}"


def records(log: ZnodeTree) -> list[tuple[Csn, Record]]:
    """Return all records of the log in order, across epochs; assert that numbers have no gap."""
    found: list[tuple[Csn, Record]] = []
    number = Csn(0)
    while (znode := log.get(tree.record(number))) is not None:
        record = codec.decode_record(znode.data)
        found.append((number, record))
        number = csn(epoch_of(number) + 1, 0) if record.kind is RecordKind.END else Csn(number + 1)
    epochs = range(epoch_of(number) + 1)
    assert len(found) == sum(len(z.children) for e in epochs if (z := log.get(tree.epoch_dir(e))) is not None)
    return found


def log_of(log: ZnodeTree) -> dict[str, list[Csn]]:
    """Return every tid in the log with its CSNs; more than one CSN is a violation of I1."""
    found: dict[str, list[Csn]] = {}
    for number, record in records(log):
        for one in record.tids:
            found.setdefault(one.tid, []).append(number)
    return found


class Bench:
    """A machine between two requests, and its answers so far."""

    def __init__(
        self,
        znodes: ZnodeTree | None = None,
        *,
        home: ReplicaId = R1,
        limits: LogLimits | None = None,
        connect: bool = True,
    ) -> None:
        self.tree = znodes if znodes is not None else new_tree()
        self.home = home
        self.limits = limits or LogLimits()
        node = self.tree.get(tree.session(home))
        assert node is not None
        self.machine = Committer(home, codec.decode_session(node.data), node.version, self.limits)
        self.session = 0
        self.request: Instruction | None = None
        self.paused = False
        self.said: list[Instruction] = []
        self.verdicts: dict[str, list[CommitDecision]] = {}
        self.raised: list[int] = []
        self.fenced = False
        self.halted = ""
        self.late: list[tuple[Op, ...]] = []
        self.nonces = 0
        if connect:
            self.connect()

    def connect(self, session: int | None = None) -> None:
        """Have a connection, by default in a new session."""
        self.session = self.session + 1 if session is None else session
        self.tell(LinkChanged(connected=True, session=self.session))

    def tell(self, event: Event) -> None:
        """Give an event to the machine and note its instructions."""
        for instruction in self.machine.step(event):
            self.said.append(instruction)
            match instruction:
                case AnswerCallers(one, decision):
                    self.verdicts.setdefault(one, []).append(decision)
                case FenceRaised(fence, _):
                    self.raised.append(fence)
                case FenceLost():
                    pass
                case Fenced():
                    self.fenced = True
                case Halted(reason):
                    self.halted = reason
                case RetryLater():
                    self.paused = True
                case _:
                    assert self.request is None, f"{instruction} while {self.request} is under way"
                    self.request = instruction
        self._save_and_restore()

    def _save_and_restore(self) -> None:
        saved = self.machine.snapshot()
        hash(saved)
        other = Committer(self.home, begun(self.home), 0, self.limits)
        other.restore(saved)
        assert other.snapshot() == saved
        self.machine = other

    def propose(self, *proposals: Proposal) -> None:
        """Request commits."""
        for one in proposals:
            self.tell(Propose(one))

    # ------------------------------------------------------------------- carrying requests out

    def ops(self) -> tuple[Op, ...]:
        """The multi under way."""
        match self.request:
            case SendCommit(plan):
                return plan.ops(NO_CLOCK)
            case SendRollover(rollover):
                return rollover.ops(NO_CLOCK)
            case SendRaise(ops):
                return ops
        raise AssertionError(f"{self.request} is no multi")

    def apply(self, ops: tuple[Op, ...]) -> MultiResult:
        """Let a multi happen in the ensemble."""
        result, _ = self.tree.apply(ops, self.session)
        return result

    def answer_multi(self, result: MultiResult, session: int | None = None) -> None:
        """Answer the multi under way."""
        request, self.request = self.request, None
        session = self.session if session is None else session
        match request:
            case SendCommit():
                self.tell(CommitEnded(result))
            case SendRollover():
                self.tell(RolloverEnded(result))
            case SendRaise():
                self.tell(RaiseEnded(result, session))
            case _:
                raise AssertionError(f"{request} is no multi")

    def serve(self, view: ZnodeTree | None = None) -> None:
        """Run the request under way without any fault; reads see ``view``, by default the present tree."""
        request = self.request
        if isinstance(request, WRITES):
            self.answer_multi(self.apply(self.ops()))
            return
        self.request = None
        view = view or self.tree
        match request:
            case DrawNonce():
                self.nonces += 1
                self.tell(NonceDrawn(f"nonce-{self.home}-{self.nonces}-{id(self)}"))
            case ReadFence():
                self.tell(FenceRead(_read(view, tree.session(self.home)), self.session))
            case ReadEpoch():
                self.tell(EpochRead(_read(view, tree.EPOCH)))
            case ReadLog(session):
                found = {one: csns[0] for one, csns in log_of(view).items()}
                self.tell(LogRead(found if session == self.session else None, session))
            case _:
                raise AssertionError(f"{request} cannot be served")

    def serve_all(self) -> None:
        """Run requests, and end pauses, until the machine rests."""
        for _ in range(1000):
            if self.request is not None:
                self.serve()
            elif self.paused:
                self.resume()
            else:
                return
        raise AssertionError(f"the machine does not come to rest: {self.request}")

    def serve_until(self, kind: type[Instruction]) -> None:
        """Run requests until one of this kind is under way."""
        for _ in range(100):
            if isinstance(self.request, kind):
                return
            if self.request is None:
                self.resume()
            else:
                self.serve()
        raise AssertionError(f"no {kind} comes, but {self.request}")

    def awaits(self, *kinds: type[Instruction]) -> bool:
        """Return whether the request under way is one of these."""
        return isinstance(self.request, kinds)

    def resume(self) -> None:
        """End a pause."""
        self.paused = False
        self.tell(Resumed())

    def lose_request(self) -> None:
        """The multi under way never arrives."""
        self.answer_multi(LOST)

    def lose_reply(self) -> None:
        """The multi under way is applied; its answer is lost."""
        self.apply(self.ops())
        self.answer_multi(LOST)

    def delay(self) -> None:
        """The multi under way arrives when :meth:`land` is called; the connection is lost before."""
        self.late.append(self.ops())
        self.answer_multi(LOST)

    def land(self) -> MultiResult:
        """Let the oldest delayed multi arrive."""
        return self.apply(self.late.pop(0))

    def fence_by_another(self, nonce: str = "foreign") -> None:
        """Another replica raises the fence of this one."""
        state = SessionState(2, "disk", nonce, "fenced")
        result = self.apply((SetData(tree.session(self.home), codec.encode_session(state)),))
        assert isinstance(result, Ok)

    # ----------------------------------------------------------------------------- what is there

    def decision(self, counter: int) -> CommitDecision:
        """Return the last verdict on a transaction."""
        return self.verdicts[tid(counter, self.home)][-1]

    def log(self) -> dict[str, list[Csn]]:
        """Return every tid in the log with its CSNs."""
        return log_of(self.tree)

    def version(self, path: str) -> int:
        """Return the data version of a znode."""
        znode = self.tree.get(path)
        assert znode is not None
        return znode.version


def _read(view: ZnodeTree, path: str) -> ReadResult:
    znode = view.get(path)
    return Refused(Reason.NO_NODE) if znode is None else Ok(znode.node)
