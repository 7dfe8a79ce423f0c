"""One transaction, its home, and a replica that is asked what became of it, under each policy.

``OutcomeResolver``, its rules and ``LocalOutcomes`` are the product's. Between any two things that they look
at the home may commit, roll back, die or start again, and the replica that is asked may apply and
forget.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

from tests.sim.explore.replay import AsksRead, Replays, Returned, RunRaised, ScriptEndsError, Turn
from tests.sim.explore.search import Broken, Move, State
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, Tid
from tidelock.csnlog.core.results import (
    Aborted,
    Committed,
    CommittedUnseen,
    HomeAnswer,
    LogReading,
    NoAnswer,
    NotMine,
    Outcome,
    Running,
    TooOld,
)
from tidelock.replica_agent.transactions.outcomes.resolver import LocalOutcomes, OutcomeResolver
from tidelock.replica_agent.transactions.outcomes.rules import Policy

ASKED, HOME = ReplicaId("r1"), ReplicaId("r2")
#: The transaction is begun at SNAPSHOT and committed at COMMIT; another one is committed at NEIGHBOUR.
SNAPSHOT, NEIGHBOUR, COMMIT = Csn(5), Csn(6), Csn(7)
TID: Final = Tid(SNAPSHOT, HOME, 1, 1)
OPEN, COMMITTED, ROLLED_BACK = "open", "committed", "rolled back"

Next = tuple[Move, "ResolvingState | Broken"]


class ResolvingState(NamedTuple):
    """The state of the world: the transaction, its home, the catalog of the replica, its question.

    Attributes:
        state: Of the transaction, as its home has decided it.
        boot: In the session znode of the home; 1 is the life of the transaction.
        life: The life that runs, 0 for none.
        remembers: The home keeps the outcome.
        applied: The replica has applied the commit.
        floor: Of the replica.
        script: What the question under way has heard; None if there is none.
        forgotten: The commit was forgotten here when that question began.
        told: The last outcome that was told.
        asks: How many questions may still be asked.
        trouble: How many deaths, fresh starts and lost answers may still come.
    """

    state: str = OPEN
    boot: int = 1
    life: int = 1
    remembers: bool = True
    applied: bool = False
    floor: Csn = CSN_NONE
    script: tuple[object, ...] | None = None
    forgotten: bool = False
    told: Outcome | None = None
    asks: int = 2
    trouble: int = 2

    @property
    def kept(self) -> Committed | None:
        """The outcome in the catalog of the replica."""
        return Committed(COMMIT) if self.applied and self.floor < COMMIT else None


class _Answers:
    """The ports of one run: each look takes the next answer of the script, or ends the run."""

    def __init__(self, script: tuple[object, ...]) -> None:
        self._script = list(script)

    def next(self, asks: str) -> Any:
        """The next answer."""
        if not self._script:
            raise ScriptEndsError(AsksRead(asks))
        return self._script.pop(0)

    # -- as `CatalogReader` and `Transactions`

    def meta(self, name: str) -> Csn:
        """The floor, the only thing that is asked for."""
        assert name == "outcome_floor"
        return cast("Csn", self.next("floor"))

    def snapshot_csn(self) -> Csn:
        """Return the smallest CSN; it does not matter to the transaction of another home."""
        return CSN_NONE

    # -- as `LogPort`

    async def find(self, _: Tid, *, newest: bool = False) -> LogReading:
        """The session znode, then the log; it is always the newest state that is read."""
        del newest
        boot = self.next("session")
        return LogReading(boot, self.next("log"))

    # -- as `HomePort`

    async def ask(self, _: Tid) -> HomeAnswer | NoAnswer:
        """The answer of the home."""
        return cast("HomeAnswer", self.next("home"))

    async def fence(self, _: ReplicaId, boot: int) -> int | None:
        """Raise the fence of the home."""
        assert boot == TID.boot
        return cast("int | None", self.next("fence"))


class _Reader:
    """The catalog of the replica, as `LocalOutcomes` reads it."""

    def __init__(self, answers: _Answers) -> None:
        self.meta, self.snapshot_csn, self._answers = answers.meta, answers.snapshot_csn, answers

    def outcome(self, _: str) -> tuple[Csn, int] | None:
        """The outcome that is kept."""
        found: Committed | None = self._answers.next("catalog")
        return None if found is None else (found.csn, found.time_ms)


class _NoTransactions:
    """A registry without the transaction, whose home is another."""

    issued = 0

    def outcome(self, _: str) -> None:
        """Return None: the transaction is unknown here."""

    def withdraw(self, _: str) -> None:
        """Do nothing: only its home has reserved its tid."""


class Resolving:
    """The model; see the module.

    Args:
        policy: The purpose of the question.
    """

    faults = frozenset({"die", "start", "home lost"})
    idle: frozenset[str] = frozenset()

    def __init__(self, replays: Replays, policy: Policy, *, asks: int = 2, trouble: int = 2) -> None:
        self._replays, self._policy = replays, policy
        self._first = ResolvingState(asks=asks, trouble=trouble)
        self._turns: dict[tuple[object, ...], Turn] = {}

    def initial(self) -> State:
        """The transaction is open, and nobody has asked."""
        return self._first

    def moves(self, state: State) -> Iterator[Next]:
        """All that can happen next."""
        assert isinstance(state, ResolvingState)
        yield from self._of_the_home(state)
        yield from self._of_the_replica(state)
        if state.script is not None:
            yield from self._looks(state, state.script)
        elif state.asks and not (self._policy.held_here and state.applied):
            forgotten = state.applied and state.kept is None
            yield ("ask",), self._settle(state._replace(asks=state.asks - 1, script=(), forgotten=forgotten))

    def _of_the_home(self, s: ResolvingState) -> Iterator[Next]:
        if s.state == OPEN and s.boot == TID.boot:  # also when the home has died: the multi is on its way
            yield ("commit",), s._replace(state=COMMITTED)
        if s.state == OPEN and s.life == TID.boot:
            yield ("roll back",), s._replace(state=ROLLED_BACK)
        if s.state == COMMITTED and s.remembers:
            yield ("home forgets",), s._replace(remembers=False)
        if s.life and s.trouble:
            yield ("die",), s._replace(life=0, trouble=s.trouble - 1)
        if not s.life and s.trouble:
            boot = s.boot + 1
            yield ("start",), s._replace(life=boot, boot=boot, trouble=s.trouble - 1)

    def _of_the_replica(self, s: ResolvingState) -> Iterator[Next]:
        if s.state == COMMITTED and not s.applied:
            yield ("apply",), s._replace(applied=True)
        if s.floor < NEIGHBOUR:
            yield ("forget neighbour",), s._replace(floor=NEIGHBOUR)
        if s.applied and s.floor < COMMIT:
            yield ("forget",), s._replace(floor=COMMIT)

    # ----------------------------------------------------------------------------------------- the question

    def _looks(self, s: ResolvingState, script: tuple[object, ...]) -> Iterator[Next]:
        turn = self._turn(script)
        assert isinstance(turn, AsksRead), turn
        kind = turn.path
        match kind:
            case "fence" if s.boot == TID.boot:
                raised = s._replace(boot=TID.boot + 1, script=(*script, TID.boot + 1))
                yield (kind, "raised"), self._settle(raised)
                yield (kind, "not"), self._settle(s._replace(script=(*script, None)))
            case "home" if s.life and s.trouble:
                lost = s._replace(script=(*script, NoAnswer()), trouble=s.trouble - 1)
                yield ("home lost",), self._settle(lost)
                yield (kind,), self._settle(s._replace(script=(*script, self._said(s))))
            case _:
                yield (kind,), self._settle(s._replace(script=(*script, self._there(s, kind))))

    def _there(self, s: ResolvingState, kind: str) -> object:
        match kind:
            case "catalog":
                return s.kept
            case "taken":
                return None  # what is taken is in the catalog at once
            case "floor":
                return s.floor
            case "session":
                return s.boot
            case "log":  # from where the replica is on
                return Committed(COMMIT) if s.state == COMMITTED and not s.applied else None
            case "home":
                return self._said(s)
        assert kind == "fence", kind
        return None

    def _said(self, s: ResolvingState) -> HomeAnswer | NoAnswer:
        """The answer of the home, also of one that was fenced and does not know."""
        if not s.life:
            return NoAnswer()
        if s.state == COMMITTED:
            return CommittedUnseen() if s.remembers else NotMine()
        if s.life != TID.boot:
            return NotMine()
        return Aborted() if s.state == ROLLED_BACK else Running()

    def _settle(self, s: ResolvingState) -> ResolvingState | Broken:
        """Take the end of the question, if it has come."""
        assert s.script is not None
        match self._turn(s.script):
            case AsksRead():
                return s
            case Returned(value):
                return self._judged(s._replace(script=None, told=value))
            case turn:
                assert isinstance(turn, RunRaised), turn
                return Broken("I8 DECIDED", f"the question ends with {turn.error!r}")

    def _judged(self, s: ResolvingState) -> ResolvingState | Broken:
        before = s.forgotten
        if isinstance(s.told, Committed) and s.told.csn != COMMIT:
            return Broken("I17 TRUTHFUL", f"{s.told} is told")
        if s.told == Running() and before and not self._policy.for_lock:
            return Broken("I8 DECIDED", "one that was committed and forgotten is called running")
        if s.told == Aborted() and self._policy.held_here and s.applied:
            # Applied meanwhile, so nothing of it is undecided here any more, and nothing can be dropped.
            return s._replace(forgotten=False, told=None)
        return s._replace(forgotten=False)

    def _turn(self, script: tuple[object, ...]) -> Turn:
        if script not in self._turns:
            self._turns[script] = self._replays.run(self._outcome(_Answers(script)))
        return self._turns[script]

    async def _outcome(self, answers: _Answers) -> Outcome:
        local = LocalOutcomes(
            replica=ASKED,
            boot=1,
            transactions=cast("Any", _NoTransactions()),
            reader=cast("Any", _Reader(answers)),
            taken=lambda _: cast("Csn | None", answers.next("taken")),
        )
        resolver = OutcomeResolver(replica=ASKED, local=local, log=answers, homes=answers)
        return await resolver.outcome(TID, self._policy)

    # -------------------------------------------------------------------------------------------- promises

    def check(self, state: State) -> Broken | None:
        """An outcome that was told is true, and stays true."""
        assert isinstance(state, ResolvingState)
        committed = state.state == COMMITTED
        match state.told:
            case Aborted() if committed:
                return Broken("I8 DECIDED", "aborted was told, and it is committed")
            case Committed() if not committed:
                return Broken("I17 TRUTHFUL", "committed was told, and it is not")
            case TooOld(floor) if self._policy.for_lock and committed and floor < COMMIT:
                return Broken(
                    "I7 NOCONFLICT",
                    f"the holder of a lock counts as committed at {floor} at most, and is at {COMMIT}",
                )
        return None

    def unsettled(self, state: State) -> Broken | None:
        """Return None: a question that is never asked again decides nothing."""
        del state
        return None

    def describe(self, state: State, move: Move) -> str:
        """A move in words."""
        assert isinstance(state, ResolvingState)
        return _WORDS[str(move[0])] + (f" ({move[1]})" if len(move) > 1 else "")


_WORDS: Final = {
    "ask": "the replica is asked",
    "commit": "the commit lands in the log",
    "roll back": "the home rolls it back",
    "home forgets": "the home forgets the outcome",
    "die": "the home dies",
    "start": "the home starts again",
    "apply": "the replica applies the commit",
    "forget neighbour": "the replica forgets outcomes up to that of a neighbour",
    "forget": "the replica forgets the outcome",
    "taken": "the replica looks at what it has taken",
    "catalog": "the replica looks into its catalog",
    "floor": "the replica reads its floor",
    "session": "the replica reads the session znode of the home",
    "log": "the replica reads the log to its end",
    "home": "the replica asks the home",
    "home lost": "the replica asks the home, and the answer is lost",
    "fence": "the replica fences the home",
}
