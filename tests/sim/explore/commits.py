"""Two committers, their clients, and a ZooKeeper that loses, delays and lags: what is explored of commits.

The committers, ``open_session``, the resolver of outcomes over ``CsnLog.find``, ``read_to_end`` and the rules
of ZooKeeper are the product's own; sessions, lost messages, processes, catalogs and clients are modelled
here. A read sees any state that its session may see; where several of them give one answer the oldest stands
for all, since whatever can happen behind a newer one can also happen behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tests.sim.explore import promises, words
from tests.sim.explore.committers import Committers, Said
from tests.sim.explore.ensemble import Ensemble, RecordFacts, first_life, new_cluster
from tests.sim.explore.procedures import Procedures, Reader, number_behind
from tests.sim.explore.replay import (
    Answered,
    AsksMulti,
    AsksRead,
    Replays,
    ReplayView,
    Returned,
    Script,
    Turn,
)
from tests.sim.explore.search import Broken, Move, State
from tests.sim.explore.surroundings import ZooKeeperMoves
from tests.sim.explore.world import (
    IDLE,
    NAMES,
    ORDERS,
    UNDECIDED,
    WAITING,
    CommitBudget,
    CommitReplica,
    CommitTx,
    CommitWorld,
    PendingRequest,
    Reply,
)
from tidelock.csnlog.cluster.bootstrap import OwnSession
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.batch import LogLimits
from tidelock.csnlog.core.committer import Committer
from tidelock.csnlog.core.committer_messages import (
    CallOff,
    CommitEnded,
    DeadlinePassed,
    EpochRead,
    Event,
    FenceRead,
    FenceWanted,
    Followed,
    LinkChanged,
    LogRead,
    Propose,
    RaiseEnded,
    Resumed,
    RolloverEnded,
)
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.results import Running, Unknown
from tidelock.csnlog.core.store import Check
from tidelock.csnlog.log import CsnLog
from tidelock.csnlog.reading import read_to_end

LOST: Final = Unknown("lost")
MULTIS: Final = frozenset({"commit", "rollover", "raise", "start"})

#: A move and the state that it leads to.
Next = tuple[Move, CommitWorld | Broken]


class CommitModel(ZooKeeperMoves):
    """The model; see the module.

    Args:
        txs: The transactions that clients will ask for.
        budget: How much trouble there is.
        victims: The replicas that trouble other than lost messages comes over.
        epoch_limit: Records of an epoch.
        committer, log, reader: What is run of the product; a planted bug may give others.
    """

    faults = frozenset(
        {"lose request", "lose reply", "delay", "session", "crash", "fence", "strike", "expire"}
        | {"again", "ask", "call off", "tail", "want"}
    )
    idle: frozenset[str] = frozenset()

    def __init__(
        self,
        replays: Replays,
        txs: Sequence[CommitTx],
        budget: CommitBudget,
        *,
        victims: tuple[int, ...] = (0, 1),
        epoch_limit: int = 1000,
        committer: type[Committer] = Committer,
        log: type[CsnLog] = CsnLog,
        reader: Reader = read_to_end,
    ) -> None:
        super().__init__(
            Ensemble(new_cluster(NAMES, (ORDERS,), epoch_limit=epoch_limit)),
            Committers(LogLimits(batch_tids_max=2, epoch_limit=epoch_limit), committer),
        )
        self.txs, self.budget, self.victims = tuple(txs), budget, victims
        self.procedures = Procedures(self.ensemble, replays, log, reader)
        self._lost = self.ensemble.results.number(LOST)

    def initial(self) -> State:
        """Both replicas run, nobody has asked for anything, and each has raised its fence in its session."""
        replicas = []
        for name in NAMES:
            machine = self.committers.begin(name, first_life(name), 0)
            replicas.append(CommitReplica(machine))
        first = CommitWorld((0,), tuple(replicas), (), *self._of_txs(), self.ensemble.log(0), self.budget)
        for which in range(len(NAMES)):
            linked = self._step(first, which, ("link", 1), LinkChanged(connected=True, session=1))
            while isinstance(linked, CommitWorld) and (request := linked.replicas[which].request) is not None:
                _, linked = next(self._with_request(linked, which, request, linked.replicas[which]))
            assert isinstance(linked, CommitWorld)
            first = linked.changed(history=linked.history[-1:]).but(which, seen=0)
        return first.changed(replicas=tuple(one.changed(seen=0) for one in first.replicas))

    def _of_txs(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        return (IDLE,) * len(self.txs), (0,) * len(self.txs), (IDLE,) * len(self.txs)

    # ---------------------------------------------------------------------------------------------- moves

    def moves(self, state: State) -> Iterator[Next]:
        """All that can happen next."""
        assert isinstance(state, CommitWorld)
        for which, replica in enumerate(state.replicas):
            if replica.request is not None:
                yield from self._with_request(state, which, replica.request, replica)
            if replica.running:
                yield from self._of_process(state, which, replica)
                yield from self._of_peer(state, which, replica)
            elif replica.script is None and which not in state.struck:
                yield ("start", which), self._start(state, which)
            if (
                state.budget.crash
                and which in self.victims
                and (replica.running or replica.script is not None)
            ):
                yield from self._crash(state, which, replica)
        for tx in range(len(self.txs)):
            yield from self._of_client(state, tx)
        for number, multi in enumerate(state.late):
            rest = state.changed(late=(*state.late[:number], *state.late[number + 1 :]))
            after = self.apply(rest, multi)
            yield ("land", multi), after if isinstance(after, Broken) else after[0]

    def _with_request(
        self, w: CommitWorld, which: int, request: PendingRequest, replica: CommitReplica
    ) -> Iterator[Next]:
        """Yield every way in which the pending request of a replica can go on."""
        if request.kind not in MULTIS:
            yield from self._serve_read(w, which, request.kind, replica)
            return
        if replica.reply is not None:
            yield ("answer", which), self._answer(w, which, replica.reply)
            if w.budget.lose_reply:
                yield ("lose reply", which), self._unknown(w.less("lose_reply"), which)
            return
        applied = self.apply(w, request.multi)
        if isinstance(applied, Broken):
            yield ("apply", which), applied
        else:
            after, result = applied
            yield ("apply", which), after.but(which, reply=Reply(result, after.now))
        if w.budget.lose_request:
            yield ("lose request", which), self._unknown(w.less("lose_request"), which)
        if w.budget.delay:
            late = w.changed(late=tuple(sorted((*w.late, request.multi))))
            yield ("delay", which), self._unknown(late.less("delay"), which)

    def _of_process(self, w: CommitWorld, which: int, replica: CommitReplica) -> Iterator[Next]:
        """Yield what a running process does by itself, and what happens to it."""
        if replica.paused:
            yield ("resume", which), self._step(w.but(which, paused=False), which, "resume", Resumed())
        yield from self._follow(w, which, replica)
        if replica.applied != replica.taken:
            yield ("apply durably", which), w.but(which, applied=replica.taken)
        if w.budget.session and which in self.victims:
            for seen in range(len(w.history)):
                yield ("session", which, seen), self._new_session(w.less("session"), which, replica, seen)
        fence = self.committers.fence(replica.machine)
        if w.budget.want and which in self.victims and fence is not None:
            yield ("want", which), self._step(w.less("want"), which, ("want", fence), FenceWanted(fence))
        if replica.asked >= 0:
            yield from self._go_on_asking(w, which, replica)

    def _of_client(self, w: CommitWorld, tx: int) -> Iterator[Next]:
        """Yield the requests of the client of a transaction, to its home and to the other replica."""
        home = self.txs[tx].home
        replica = w.replicas[home]
        boot, heard = w.boots[tx], w.heard[tx]
        if replica.running and not boot:
            begun = w.changed(boots=(*w.boots[:tx], replica.boot, *w.boots[tx + 1 :]))
            yield ("propose", tx), self._propose(begun, tx)
        elif replica.running and heard == UNDECIDED and boot == replica.boot and w.budget.again:
            yield ("again", tx), self._propose(w.less("again"), tx)
        if heard == WAITING and w.budget.expire:
            expired = DeadlinePassed(self.txs[tx].name(boot))
            yield ("expire", tx), self._step(w.less("expire"), home, ("expire", tx), expired)
        if w.budget.call_off and heard in {WAITING, UNDECIDED} and boot == replica.boot and replica.running:
            off = CallOff(self.txs[tx].name(boot))
            yield ("call off", tx), self._step(w.less("call_off"), home, ("call off", tx), off)
        for which, asker in enumerate(w.replicas):
            strange = which != home or asker.boot > boot
            if boot and w.budget.ask and asker.running and asker.asked < 0 and strange:
                yield ("ask", tx, which), w.less("ask").but(which, asked=tx, answers=())

    def _of_peer(self, w: CommitWorld, which: int, replica: CommitReplica) -> Iterator[Next]:
        """Yield what a replica does to the other one, or for the whole cluster."""
        other = 1 - which
        if other in self.victims and other not in w.struck:
            for kind in ("fence", "strike"):
                if getattr(w.budget, kind) and (after := self.seize(w, which, kind)) is not None:
                    yield (kind, which), after
        if w.budget.tail and (after := self.move_tail(w, which)) is not None:
            yield ("tail", which), after

    # ------------------------------------------------------------------------------------------- messages

    def _answer(self, w: CommitWorld, which: int, reply: Reply) -> CommitWorld | Broken:
        """The answer to a multi arrives."""
        replica = w.replicas[which]
        request = replica.request
        assert request is not None
        same = request.session == replica.session
        seen = max(replica.seen, reply.at) if same else replica.seen
        after = w.but(which, request=None, reply=None, seen=seen)
        return self._ended(after, which, request.kind, reply.result, request.session if same else 0)

    def _unknown(self, w: CommitWorld, which: int) -> CommitWorld | Broken:
        """The answer to a multi will never come."""
        request = w.replicas[which].request
        assert request is not None
        return self._ended(w.but(which, request=None, reply=None), which, request.kind, self._lost, 0)

    def _ended(
        self, w: CommitWorld, which: int, kind: str, result: int, session: int
    ) -> CommitWorld | Broken:
        if kind == "start":
            script = w.replicas[which].script
            assert script is not None
            return self._go_on_starting(w, which, (*script, Answered(result)))
        value = self.ensemble.results.values[result]
        event: Event
        if kind == "commit":
            event = CommitEnded(value)
        elif kind == "rollover":
            event = RolloverEnded(value)
        else:
            event = RaiseEnded(value, session)
        return self._step(w, which, (kind, result, session), event)

    def _serve_read(self, w: CommitWorld, which: int, kind: str, replica: CommitReplica) -> Iterator[Next]:
        """A read sees any state that its session may see: each different answer once."""
        answers: dict[object, int] = {}
        for at in range(replica.seen, len(w.history)):
            answers.setdefault(self._read(w, which, kind, at), at)
        for found, at in answers.items():
            after = w.but(which, request=None, seen=at)
            key = (kind, found, replica.session)
            yield ("read", which, at), self._step(after, which, key, _event(*key))

    def _read(self, w: CommitWorld, which: int, kind: str, at: int) -> object:
        state = w.history[at]
        if kind == "read fence":
            return self.ensemble.read(state, tree.session(NAMES[which]))
        if kind == "read epoch":
            return self.ensemble.read(state, tree.EPOCH)
        return self.procedures.own_tids(NAMES[which], state, self.read_from(w, which))

    def read_from(self, w: CommitWorld, which: int) -> Csn:
        """Where a replica begins when it reads the log to its end: its follower has met all before that."""
        return number_behind(w.log, w.replicas[which].taken)

    def met(self, which: int, entry: RecordFacts) -> tuple[tuple[str, Csn], ...]:
        """The own tids that a follower tells the committer of."""
        return tuple((tid, entry.csn) for tid in entry.tids if entry.home == NAMES[which])

    # ----------------------------------------------------------------------------------------- processes

    def _step(self, w: CommitWorld, which: int, key: object, event: Event) -> CommitWorld | Broken:
        """Give a committer an event, and let the world hear what it says."""
        replica = w.replicas[which]
        machine, said = self.committers.step(replica.machine, (key, type(event)), event)
        if said.halted:
            return Broken("I15 FAILSTOP", f"{NAMES[which]} stops although nothing is wrong: {said.halted}")
        changes: dict[str, object] = {"machine": machine}
        if said.paused:
            changes["paused"] = True
        if said.request is not None:
            kind, ops = said.request
            multi = self.ensemble.multis.number(ops) if ops else -1
            changes["request"] = PendingRequest(kind, multi, replica.session)
        after = self._heard(w.but(which, **changes), said)
        if isinstance(after, CommitWorld) and said.fenced:
            after = self._ends(after, which)
        return after if isinstance(after, Broken) else self.trimmed(after)

    def _heard(self, w: CommitWorld, said: Said) -> CommitWorld | Broken:
        """Deliver the answers of a committer; every state is checked for their truth."""
        for tid, decision in said.verdicts:
            tx = next(n for n, one in enumerate(self.txs) if w.boots[n] and one.name(w.boots[n]) == tid)
            before, now = w.heard[tx], promises.code(decision)
            if before in {WAITING, UNDECIDED}:
                w = w.hears(tx, now)
            elif now not in {before, UNDECIDED}:
                return Broken(
                    "I8 DECIDED",
                    f"{tid} was said to be {promises.word(before)}, and now {promises.word(now)}",
                )
        return w

    def _propose(self, w: CommitWorld, tx: int) -> CommitWorld | Broken:
        home, boot = self.txs[tx].home, w.boots[tx]
        return self._step(
            w.hears(tx, WAITING), home, ("propose", tx, boot), Propose(self.txs[tx].proposal(boot))
        )

    def _ends(self, w: CommitWorld, which: int) -> CommitWorld:
        """The process is gone: what was not durable with it, and nobody answers its callers."""
        replica = w.replicas[which]
        for tx, one in enumerate(self.txs):
            if one.home == which and w.heard[tx] == WAITING:
                w = w.hears(tx, UNDECIDED)
        return w.but(
            which, machine=-1, request=None, reply=None, paused=False, seen=0, taken=replica.applied,
            script=None, asked=-1, answers=(),
        )  # fmt: skip

    def _crash(self, w: CommitWorld, which: int, replica: CommitReplica) -> Iterator[Next]:
        """The process dies; a multi that was under way never arrives, or arrives later."""
        dead = self.trimmed(self._ends(w.less("crash"), which))
        yield ("crash", which), dead
        request = replica.request
        if request is not None and request.multi >= 0 and replica.reply is None:
            yield ("crash, sent", which), dead.changed(late=tuple(sorted((*w.late, request.multi))))

    def _new_session(
        self, w: CommitWorld, which: int, replica: CommitReplica, seen: int
    ) -> CommitWorld | Broken:
        session = replica.session + 1
        after = w.but(which, session=session, seen=seen, asked=-1, answers=())
        request = replica.request
        if request is None or request.multi >= 0:
            return self._step(after, which, ("link", session), LinkChanged(connected=True, session=session))
        linked = self._step(after, which, ("link", session), LinkChanged(connected=True, session=session))
        if isinstance(linked, Broken):
            return linked
        failed = None if request.kind == "read log" else LOST
        return self._step(
            linked.but(which, request=None), which, (request.kind, failed, 0), _event(request.kind, failed, 0)
        )

    def _follow(self, w: CommitWorld, which: int, replica: CommitReplica) -> Iterator[Next]:
        """The follower takes the next record, as soon as its session can see it."""
        wanted = number_behind(w.log, replica.taken)
        entry = next((one for one in w.log if one.csn == wanted), None)
        if entry is None:
            return
        path = tree.record(wanted)
        for at in range(replica.seen, len(w.history)):
            if self.ensemble.tree(w.history[at]).get(path) is not None:
                after = w.but(which, seen=at, taken=wanted, **self._durable(w, wanted))
                own = self.met(which, entry)
                yield (
                    ("follow", which),
                    self._step(after, which, ("follow", wanted, own), Followed(wanted, own)),
                )
                break
        if self.ensemble.tail(w.history[-1]) > wanted:
            if which not in w.struck:
                yield (
                    ("too late", which),
                    Broken("I12 GC-SAFE", f"record {wanted} is deleted, {NAMES[which]} needs it"),
                )
                return
            yield ("too late", which), self._ends(w, which)

    def _durable(self, w: CommitWorld, taken: Csn) -> dict[str, object]:
        """Where nobody can tell when the catalog is durable, it is so at once."""
        return {} if w.budget.crash or w.budget.tail else {"applied": taken}

    def _start(self, w: CommitWorld, which: int) -> CommitWorld | Broken:
        started = w.but(which, script=(), session=w.replicas[which].session + 1)
        return self._go_on_starting(started, which, ())

    def _go_on_starting(self, w: CommitWorld, which: int, script: Script) -> CommitWorld | Broken:
        """Go on until the start has something to send that is more than a barrier."""
        replica, home = w.replicas[which], NAMES[which]
        while True:
            turn = self.procedures.start(home, f"{home}.s{replica.session}", replica.applied, script)
            if isinstance(turn, AsksMulti) and all(isinstance(op, Check) for op in turn.ops):
                result, _ = self.ensemble.apply(w.history[-1], self.ensemble.multis.number(turn.ops))
                script = (*script, Answered(result))
            elif isinstance(turn, AsksRead):
                script = (*script, ReplayView(w.history[-1]))
            else:
                break
        if isinstance(turn, AsksMulti):
            request = PendingRequest("start", self.ensemble.multis.number(turn.ops), replica.session)
            return w.but(which, script=script, request=request, seen=w.now)
        if not isinstance(turn, Returned):
            return Broken("I14 LIVE", f"{home} cannot start: {turn}")
        own: OwnSession = turn.value
        machine = self.committers.begin(home, own.state, own.fence)
        begun = w.but(which, machine=machine, boot=own.boot, script=None, seen=w.now)
        linked = LinkChanged(connected=True, session=replica.session)
        return self._step(begun, which, ("link", replica.session), linked)

    def _go_on_asking(self, w: CommitWorld, which: int, replica: CommitReplica) -> Iterator[Next]:
        """The other replica finds out an outcome, one read after the other."""
        tx = replica.asked
        tid = self.txs[tx].tid(w.boots[tx])
        catalog = tuple(entry for entry in w.log if entry.csn <= replica.taken)
        turns: dict[object, tuple[int, Script, Turn]] = {}
        for at in range(replica.seen, len(w.history)):
            script = (*replica.answers, ReplayView(w.history[at]))
            turn = self.procedures.outcome(NAMES[which], tid, catalog, script)
            # The next question does not show which answers came before it.
            seen = (
                self.ensemble.read(w.history[at], tree.session(tid.home))
                if isinstance(turn, AsksRead)
                else None
            )
            turns.setdefault((turn, seen), (at, script, turn))
        for at, script, turn in turns.values():
            if isinstance(turn, AsksRead):
                yield ("look", which, at), w.but(which, seen=at, answers=script)
                continue
            after = w.but(which, seen=at, asked=-1, answers=())
            told = self._learns(after, tx, turn.value) if isinstance(turn, Returned) else after
            yield ("learn", which, at), told

    def _learns(self, w: CommitWorld, tx: int, outcome: object) -> CommitWorld | Broken:
        """Somebody is told an outcome by the other replica."""
        if isinstance(outcome, Running):
            return w
        told, before = promises.code(outcome), w.told[tx]
        if before not in {IDLE, told}:
            return Broken(
                "I8 DECIDED", f"{self.txs[tx]} was {promises.word(before)}, and now {promises.word(told)}"
            )
        return w.changed(told=(*w.told[:tx], told, *w.told[tx + 1 :]))

    # ----------------------------------------------------------------------------------------- promises

    def check(self, state: State) -> Broken | None:
        """The promise that a state breaks, if any."""
        assert isinstance(state, CommitWorld)
        return promises.check(self.txs, state)

    def unsettled(self, state: State) -> Broken | None:
        """Return the work that is not done in a state in which nothing happens any more by itself."""
        assert isinstance(state, CommitWorld)
        return promises.unsettled(self, state)

    def describe(self, state: State, move: Move) -> str:
        """A move in words."""
        assert isinstance(state, CommitWorld)
        return words.describe(self, state, move)


def _event(kind: str, found: object, session: int) -> Event:
    """The answer to a read as its event."""
    if kind == "read log":
        return LogRead(None if found is None else dict(found), session)  # type: ignore[call-overload]
    if kind == "read fence":
        return FenceRead(found, session)  # type: ignore[arg-type]
    return EpochRead(found)  # type: ignore[arg-type]
