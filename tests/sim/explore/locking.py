"""Transactions of several replicas remove parts of one table: what is explored of removal locks.

The locks are the product's own. Modelled are ZooKeeper's rules, the log that commits write to, how far each
replica has applied it, processes, who takes whom for silent, and the look into the catalog behind each lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from tests.sim.explore.answers import Heard
from tests.sim.explore.ensemble import Ensemble, RecordFacts, first_life, new_cluster
from tests.sim.explore.lock_scene import (
    COMMITTED,
    DONE,
    GIVING,
    HELD,
    IDLE,
    NAMES,
    PARTS,
    TAKING,
    Deal,
    LockAgent,
    LockMishaps,
    LockRemoval,
    LockScene,
)
from tests.sim.explore.lockers import TABLE, Asks, Lockers, LockRun, LockRunEnded
from tests.sim.explore.replay import Replays
from tests.sim.explore.search import Broken, Move, State
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, PartId, Tid
from tidelock.csnlog.core.model import Record, RecordKind, SessionState, TidRecord
from tidelock.csnlog.core.results import Aborted, Committed, Ok, Reason, Refused, Running, Unknown
from tidelock.csnlog.core.store import Check, Create, Op, SetData
from tidelock.replication.core.lock_rules import LockInfo, read_lock

_LOST: Final = Unknown("lost")

Next = tuple[Move, "LockScene | Broken"]


class Locking:
    """The model; see the module.

    Args:
        replays: Runs coroutines.
        removals: The transactions.
        mishaps: What goes wrong.
        returns: Numbers of the replicas that start again when they are down.
        victims: Numbers of the replicas that crash.
        fine: Each read may see a newer state than the one before; else only multis come between.
        early_look: A planted bug: the catalog is asked before the locks are taken.
        eager: Sweeps also come when nothing is to be found.
        hasty: A planted bug: a replica with a new disk begins before it is where the old one was.
        orphan: At the beginning the first home has died, and the first transaction has its locks still.
        long: The transactions were begun before all others; they lock at what is applied since.
        joins: The last replica is no member at the beginning; the first one registers it.
        unchecked: A planted bug: the registration does not check the progress that was read.
        below: A planted bug: a registered replica serves from the beginning of the log on.
    """

    faults = frozenset(
        {
            "lose",
            "reply",
            "give up",
            "land",
            "crash",
            "crash, sent",
            "silent",
            "race",
            "roll back",
            "replace",
        }
    )
    idle: frozenset[str] = frozenset()

    def __init__(
        self,
        replays: Replays,
        removals: tuple[LockRemoval, ...],
        mishaps: LockMishaps,
        *,
        returns: tuple[int, ...] = (0, 1, 2),
        victims: tuple[int, ...] = (0,),
        fine: bool = False,
        early_look: bool = False,
        eager: bool = False,
        hasty: bool = False,
        orphan: bool = False,
        long: bool = False,
        joins: bool = False,
        unchecked: bool = False,
        below: bool = False,
    ) -> None:
        self.removals, self._returns, self._victims = removals, returns, victims
        self._fine, self._early, self._eager, self._long = fine, early_look, eager, long
        self._hasty, self._unchecked, self._below = hasty, unchecked, below
        self._joins = joins
        self._disjoint = not any(
            one.covers(part) and other.covers(part)
            for one, other in itertools.combinations(removals, 2)
            for part in PARTS
        )
        homes = range(1 + max(one.home for one in removals))
        first = new_cluster(NAMES[: len(homes)], (TABLE,), epoch_limit=1000)
        made, _ = first.apply(
            [Create(tree.LOCKS), Create(tree.lock_dir(TABLE)), Create(tree.wide_dir(TABLE))], 0
        )
        assert isinstance(made, Ok)
        self.ensemble = Ensemble(first)
        self.lockers = Lockers(self.ensemble, replays)
        self._first = LockScene(
            0,
            tuple(LockAgent(self.lockers.empty) for _ in homes),
            tuple(Deal() for _ in removals),
            mishaps=mishaps,
        )
        self._locks: dict[int, tuple[LockInfo, ...]] = {}
        if joins:
            self._first = self._first.but(len(homes) - 1, up=False, member=False)
        if orphan:
            self._first = self._orphaned(self._first)

    def _orphaned(self, s: LockScene) -> LockScene:
        """The first home takes the locks of its transaction, and dies."""
        after = self._begin(s, 0)
        while isinstance(after, LockScene) and (run := after.agents[0].run) is not None:
            after = next(scene for _, scene in self._goes_on(after, 0, after.agents[0], run))
        assert isinstance(after, LockScene)
        return self._dies(after, 0)

    def initial(self) -> State:
        """All are up and nothing is begun, unless the model is told otherwise."""
        return self._first

    # ---------------------------------------------------------------------------------------------- moves

    def moves(self, state: State) -> Iterator[Next]:
        """All that can happen next."""
        assert isinstance(state, LockScene)
        if not state.agents[-1].member:
            yield from self._registers(state)
        for which, agent in enumerate(state.agents):
            if not agent.member:
                continue
            if not agent.up:
                if which in self._returns:
                    yield ("start", which), self._start(state, which)
                if state.mishaps.replace and agent.applied > 1:
                    told = max(agent.told, agent.applied)
                    yield ("replace", which), state.but(which, applied=Csn(1), told=told).less("replace")
                continue
            if agent.applied < self._log(state)[-1].csn:
                yield ("apply", which), state.but(which, applied=Csn(agent.applied + 1))
            if agent.run is not None:
                yield from self._goes_on(state, which, agent, agent.run)
            else:
                yield from self._begins(state, which, agent)
            if state.mishaps.crash and which in self._victims:
                yield ("crash", which), self._dies(state, which).less("crash")
        # By what was told, which may be of a disk that is no more.
        # A replica that was registered has published nothing of its own before it has applied something.
        tail = Csn(min(self._published(agent) for agent in state.agents if agent.member) + 1)
        if tail > max(state.tail, Csn(2)):
            yield ("tail", tail), state._replace(tail=tail)
        for multi in state.late:
            landed = self._apply(state, multi)[0]
            yield ("land", multi), landed._replace(late=landed.late - {multi})

    def _published(self, agent: LockAgent) -> Csn:
        """Return the CSN that others reckon with: of a disk that is no more, but not of a registration."""
        return agent.applied if self._joins else max(agent.applied, agent.told)

    def _registers(self, s: LockScene) -> Iterator[Next]:
        """Yield the registration of the last replica: a read of end and progress, then the multi."""
        by, last = s.agents[0], len(s.agents) - 1
        progress, end = by.applied, self._log(s)[-1].csn
        if by.up and s.registering != (end, progress):
            yield ("read end", 0), s._replace(registering=(end, progress))
        if by.up and s.registering is not None and (s.registering[1] == progress or self._unchecked):
            told = Csn(1) if self._below else max(s.registering)
            yield ("register", last), s.but(last, up=True, member=True, told=told)._replace(registering=None)

    def _begins(self, s: LockScene, which: int, agent: LockAgent) -> Iterator[Next]:
        """Yield the steps of an agent that do not concern locks."""
        for number, deal in enumerate(s.deals):
            if self.removals[number].home != which:
                continue
            if deal.phase == IDLE and (agent.applied >= agent.told or self._hasty):
                yield ("begin", number), self._begin(s, number)
            elif deal.phase == HELD:
                yield ("commit", number), self._commit(s, number)
                if s.mishaps.rollback:
                    yield ("roll back", number), self._gives_back(s, number).less("rollback")
            elif deal.phase == GIVING:
                yield ("give back", number), self._run(s, which, LockRun("release", self.tid(s, number)))
        if self._has_to_sweep(s, which, agent):
            silent = frozenset(
                NAMES[other]
                for other, one in enumerate(s.agents)
                if one.member and not one.up and other != which
            )
            yield ("sweep", which), self._run(s, which, LockRun("sweep", at=s.tail, silent=silent))

    def _has_to_sweep(self, s: LockScene, which: int, agent: LockAgent) -> bool:
        """Tell whether a sweep would find anything."""
        book = self.lockers.mind(agent.mind).book
        live = {
            str(self.tid(s, number)) for number, deal in enumerate(s.deals) if TAKING <= deal.phase < DONE
        }
        due = any(csn < s.tail or self._eager for csn, _ in book._committed.values())
        if book._leaving or due:
            return True
        csns = {text: entry.csn for entry in self._log(s) for text in entry.tids}
        for lock in self.locks(s.zk):
            home = NAMES.index(lock.tid.home)
            gone = not s.agents[home].up if home != which else lock.tid.boot < agent.boot
            text = str(lock.tid)
            mine = home == which and not self.lockers.mind(agent.mind).adopted
            if gone and text not in live and (home != which or mine) and csns.get(text, 0) < s.tail:
                return True
        return False

    def _goes_on(self, s: LockScene, which: int, agent: LockAgent, run: LockRun) -> Iterator[Next]:
        """The next step of a call that is under way."""
        turn = self.lockers.turn(NAMES[which], agent.boot, agent.fence, agent.mind, run, agent.script)
        assert isinstance(turn, Asks), "a run that has ended is not under way"
        if turn.kind == "multi":
            number = self.ensemble.multis.number(turn.about)
            after, answer = self._apply(s, number)
            yield ("multi", which), self._hears(after, which, answer)
            if s.mishaps.lose:
                yield ("lose", which), self._hears(s.less("lose"), which, _LOST)
            if s.mishaps.reply:
                yield ("reply", which), self._hears(after.less("reply"), which, _LOST)
            if s.mishaps.late:
                sent = s._replace(late=s.late | {number}).less("late")
                yield ("give up", which), self._hears(sent, which, _LOST)
            if s.mishaps.crash and s.mishaps.late and which in self._victims:
                sent = s._replace(late=s.late | {number}).less("late").less("crash")
                yield ("crash, sent", which), self._dies(sent, which)
        elif turn.kind == "barrier":
            after, answer = self._apply(s, self.ensemble.multis.number(turn.about))
            yield ("multi", which), self._hears(after, which, answer)
        elif turn.kind == "silent":
            other = NAMES.index(turn.about)
            up = s.agents[other].up
            if up:
                yield ("read", which), self._hears(s, which, False)
                if s.mishaps.silent:
                    yield ("silent", which, other), self._hears(s.less("silent"), which, True)
            elif not any(one.sweeper for one in s.agents):
                yield ("read", which), self._hears(s.but(which, sweeper=True), which, True)
            elif s.mishaps.race:
                yield ("race", which), self._hears(s.but(which, sweeper=True).less("race"), which, True)
        else:
            yield ("read", which), self._hears(s, which, self._answer(s, turn))

    def _answer(self, s: LockScene, asks: Asks) -> object:
        """Return the answer to a read in this state."""
        about = asks.about
        if asks.kind == "get":
            return self.ensemble.read(s.zk, about)
        if asks.kind == "log":
            return self._log(s)
        if asks.kind == "own":
            number = next(number for number in range(len(s.deals)) if self.tid(s, number) == about)
            if s.deals[number].phase == COMMITTED:
                return next(Committed(one.csn) for one in self._log(s) if str(about) in one.tids)
            return Aborted() if s.deals[number].phase in {GIVING, DONE} else Running()
        znode = self.ensemble.tree(s.zk).get(about)
        if asks.kind == "exists":
            return Ok(None if znode is None else znode.node)
        return Refused(Reason.NO_NODE) if znode is None else Ok(tuple(sorted(znode.children)))

    def _hears(self, s: LockScene, which: int, answer: object) -> LockScene | Broken:
        """Let a call hear an answer, and all that it reads next at this moment; then take its end."""
        script = s.agents[which].script
        while True:
            script = (*script, Heard(self.lockers.answers.number(answer)))
            agent = s.agents[which]
            assert agent.run is not None
            turn = self.lockers.turn(NAMES[which], agent.boot, agent.fence, agent.mind, agent.run, script)
            if isinstance(turn, LockRunEnded):
                return self._ended(s, which, agent.run, turn)
            if self._fine or turn.kind in {"multi", "barrier", "silent"}:
                return s.but(which, script=script)
            answer = self._answer(s, turn)

    # --------------------------------------------------------------------------------------- transactions

    def tid(self, s: LockScene, number: int) -> Tid:
        """The tid of a transaction that was begun."""
        deal = s.deals[number]
        return Tid(deal.snapshot, NAMES[self.removals[number].home], deal.boot, number + 1)

    def _begin(self, s: LockScene, number: int) -> LockScene | Broken:
        """Begin a transaction: it wants what it sees, and takes its locks."""
        removal = self.removals[number]
        agent = s.agents[removal.home]
        snapshot = LockAgent(0).applied if self._long else agent.applied
        gone = {part for part, csn in self._removed(s).items() if csn <= snapshot}
        wants = frozenset(part for part in PARTS if removal.covers(part)) - gone
        after = s.deal(number, phase=TAKING, boot=agent.boot, snapshot=snapshot, removes=wants)
        if not wants:
            return after.deal(number, phase=DONE)._replace(won=True)
        if self._early and self._conflicts(after, number):
            return after.deal(number, phase=DONE)._replace(won=True)
        parts = tuple((part, PARTS[part]) for part in sorted(wants)) if removal.wide is None else ()
        wide = () if removal.wide is None else (removal.wide,)
        return self._run(
            after, removal.home, LockRun("take", self.tid(after, number), parts, wide, agent.applied)
        )

    def _conflicts(self, s: LockScene, number: int) -> bool:
        """The look into the catalog: whether what is wanted was removed above the snapshot."""
        deal, applied = s.deals[number], s.agents[self.removals[number].home].applied
        return any(deal.snapshot < self._removed(s).get(part, 0) <= applied for part in deal.removes)

    def _removed(self, s: LockScene) -> dict[PartId, Csn]:
        """The CSNs at which parts were removed."""
        csns = {text: entry.csn for entry in self._log(s) for text in entry.tids}
        return {
            part: csns[str(self.tid(s, number))]
            for number, deal in enumerate(s.deals)
            for part in deal.removes
            if str(self.tid(s, number)) in csns
        }

    def _commit(self, s: LockScene, number: int) -> LockScene | Broken:
        """Send the record, and hear the answer."""
        which, tid = self.removals[number].home, self.tid(s, number)
        agent = s.agents[which]
        record = codec.encode_record(Record(RecordKind.COMMIT, NAMES[which], 0, (TidRecord(str(tid)),)))
        fence = Check(tree.session(NAMES[which]), agent.fence)
        create = Create(tree.record_prefix(0), record, sequential=True)
        after, answer = self._apply(s, self.ensemble.multis.number((fence, create)))
        match answer:
            case Ok(value=(_, str(path))):
                csn = tree.csn_of(path)
                mind = self.lockers.changed(agent.mind, lambda book: book.commit(tid, csn))
                return after.deal(number, phase=COMMITTED).but(which, mind=mind)
        return self._dies(s, which)

    @staticmethod
    def _gives_back(s: LockScene, number: int) -> LockScene:
        return s.deal(number, phase=GIVING)

    # ------------------------------------------------------------------------------------------- processes

    def _run(self, s: LockScene, which: int, run: LockRun) -> LockScene | Broken:
        """Begin a call, up to what it waits for first."""
        agent = s.agents[which]
        turn = self.lockers.turn(NAMES[which], agent.boot, agent.fence, agent.mind, run, ())
        after = s.but(which, run=run, script=())
        if isinstance(turn, LockRunEnded):
            return self._ended(after, which, run, turn)
        if self._fine or turn.kind in {"multi", "barrier", "silent"}:
            return after
        return self._hears(after, which, self._answer(after, turn))

    def _ended(self, s: LockScene, which: int, run: LockRun, end: LockRunEnded) -> LockScene | Broken:
        """Take the end of a call."""
        if end.fenced:
            return self._dies(s, which)
        after = s.but(which, run=None, script=(), sweeper=False, mind=end.mind, fence=end.fence)
        if run.kind == "sweep":
            return after
        number = next(number for number in range(len(s.deals)) if self.tid(s, number) == run.tid)
        if run.kind == "release":
            return after.deal(number, phase=DONE)
        if end.error is not None:
            return self._gives_back(after, number)
        if not self._early and self._conflicts(after, number):
            return self._gives_back(after, number)._replace(won=True)
        return after.deal(number, phase=HELD)._replace(won=True)

    def _dies(self, s: LockScene, which: int) -> LockScene:
        """A process ends: its open transactions are over, nobody knows what it held."""
        after = s.but(which, up=False, run=None, script=(), sweeper=False, mind=self.lockers.empty)._replace(
            won=True
        )
        for number, deal in enumerate(s.deals):
            if self.removals[number].home == which and TAKING <= deal.phase < DONE:
                after = after.deal(number, phase=DONE)
        return after

    def _start(self, s: LockScene, which: int) -> LockScene:
        """Begin a life: boot and fence are raised."""
        found = self.ensemble.read(s.zk, tree.session(NAMES[which]))
        assert isinstance(found, Ok)
        boot, version = codec.decode_session(found.value.data).boot + 1, found.value.version
        state = SessionState(boot, first_life(NAMES[which]).disk, f"{NAMES[which]}.{version}", "serving")
        raised = SetData(tree.session(NAMES[which]), codec.encode_session(state), version)
        after, _ = self._apply(s, self.ensemble.multis.number((raised,)))
        return after.but(which, up=True, boot=boot, fence=version + 1)

    # ------------------------------------------------------------------------------------------- ZooKeeper

    def _apply(self, s: LockScene, multi: int) -> tuple[LockScene, object]:
        result, state = self.ensemble.apply(s.zk, multi)
        return s._replace(zk=state), self.ensemble.results.values[result]

    def _log(self, s: LockScene) -> tuple[RecordFacts, ...]:
        return self.ensemble.log(s.zk)

    def locks(self, state: int) -> tuple[LockInfo, ...]:
        """All locks in a state of ZooKeeper."""
        known = self._locks.get(state)
        if known is None:
            found = []
            for directory in (tree.lock_dir(TABLE), tree.wide_dir(TABLE)):
                znode = self.ensemble.tree(state).get(directory)
                assert znode is not None
                for name in sorted(znode.children - {tree.WIDE}):
                    child = self.ensemble.tree(state).get(f"{directory}/{name}")
                    assert child is not None
                    found.append(read_lock(TABLE, f"{directory}/{name}", child.data))
            known = self._locks[state] = tuple(found)
        return known

    # ------------------------------------------------------------------------------------------- promises

    def check(self, state: State) -> Broken | None:
        """No part is removed by two committed transactions, nor locked by two that may both commit."""
        assert isinstance(state, LockScene)
        committed = [
            (self.tid(state, number), deal.removes)
            for number, deal in enumerate(state.deals)
            if deal.phase >= DONE
            and any(str(self.tid(state, number)) in one.tids for one in self._log(state))
        ]
        for index, (tid, removes) in enumerate(committed):
            for other, others in committed[index + 1 :]:
                if both := removes & others:
                    return Broken("I7 NOCONFLICT", f"{tid} and {other} have both removed {sorted(both)}")
        return None

    def unsettled(self, state: State) -> Broken | None:
        """All transactions are decided, one had its locks at least, and no lock is left."""
        assert isinstance(state, LockScene)
        for number, deal in enumerate(state.deals):
            if deal.phase < DONE and state.agents[self.removals[number].home].up:
                return Broken("I14 LIVE", f"transaction {number + 1} is never decided")
        if not state.won:
            return Broken("I14 LIVE", "everybody was refused, though nothing went wrong")
        refused = any(deal.phase == DONE for deal in state.deals)
        if self._disjoint and refused and state.mishaps == self._first.mishaps:
            return Broken("I14 LIVE", "one was refused, though nobody was in its way")
        csns = {text: entry.csn for entry in self._log(state) for text in entry.tids}
        left = [lock for lock in self.locks(state.zk) if csns.get(str(lock.tid), 0) < state.tail]
        if left:
            return Broken("I13 NOLEAK", f"{left[0].znode} of {left[0].tid} stays for ever")
        end, present = self._log(state)[-1].csn, [agent for agent in state.agents if agent.up]
        if len(present) == len(state.agents) and end > 1 and state.tail <= end:
            return Broken("I14 LIVE", f"the tail stays at {state.tail}, the log ends at {end}")
        return None

    def describe(self, state: State, move: Move) -> str:
        """A move in words."""
        assert isinstance(state, LockScene)
        kind, about = str(move[0]), int(str(move[1]))
        if kind in {"begin", "commit", "roll back", "give back"}:
            home = NAMES[self.removals[about].home]
            return f"{home} {_WORDS[kind]} transaction {about + 1}"
        if kind == "tail":
            return f"the tail moves to {about}"
        if kind == "land":
            return f"a late multi arrives: {self._said(about)}"
        agent = state.agents[about]
        text = _WORDS[kind]
        if agent.run is not None:
            turn = self.lockers.turn(
                NAMES[about], agent.boot, agent.fence, agent.mind, agent.run, agent.script
            )
            if isinstance(turn, Asks):
                ops = turn.about if turn.kind in {"multi", "barrier"} else ()
                said = self._said(self.ensemble.multis.number(ops)) if ops else f"{turn.kind} {turn.about}"
                text = f"{text} ({agent.run.kind}: {said})"
        return f"{NAMES[about]} {text}"

    def _said(self, multi: int) -> str:
        return ", ".join(_op(op) for op in self.ensemble.multis.values[multi])


_WORDS: Final = {
    "begin": "begins",
    "commit": "commits",
    "roll back": "wants to roll back",
    "give back": "gives back the locks of",
    "start": "starts",
    "read end": "reads the end of the log, to register the last replica",
    "register": "is registered",
    "apply": "applies the next record",
    "crash": "dies",
    "replace": "gets an empty disk",
    "crash, sent": "dies, its request is still on its way",
    "sweep": "sweeps",
    "multi": "writes",
    "read": "reads",
    "lose": "loses a request",
    "reply": "loses an answer",
    "give up": "gives up on a request that is still on its way",
    "race": "is about the locks of a silent replica too",
    "silent": "takes a replica that lives for silent",
}


def _op(op: Op) -> str:
    name = type(op).__name__.lower().removesuffix("data")
    return f"{name} {op.path.removeprefix(tree.lock_dir(TABLE) + '/')}"
