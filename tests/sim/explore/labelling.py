"""Runs of the batches of one streaming query at two homes, and the end of its label's retention.

``Commits`` (the loop that judges a label again), ``Labels``, ``CsnLog.label``, ``judge``, ``batch.plan`` and
``OutcomeRetention`` are the product's. A multi is answered when it is applied: what becomes of lost ones is
explored with the committer (:mod:`tests.sim.explore.commits`). A read sees any state that the session of its
home may see, so what a run has read of the label may be old.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

from tests.sim.explore.answers import AnsweredStore, FencedLog, Heard, hear
from tests.sim.explore.ensemble import Ensemble, first_life, new_cluster
from tests.sim.explore.replay import AsksMulti, AsksRead, Replays, Returned, RunRaised, Turn, let_write
from tests.sim.explore.search import Broken, Move, State
from tests.sim.explore.world import NAMES
from tests.support.wall_clocks import NO_CLOCK, own_clock
from tidelock.csnlog.cluster.bootstrap import OwnSession
from tidelock.csnlog.cluster.start_check import FORMAT_VERSION
from tidelock.csnlog.core import batch, codec, tree
from tidelock.csnlog.core.commit_errors import to_error
from tidelock.csnlog.core.committer_messages import Rejected
from tidelock.csnlog.core.follower import Follower
from tidelock.csnlog.core.ids import CSN_NONE, Csn, Tid
from tidelock.csnlog.core.model import ClusterState, LabelState, LogRecord, TidRecord
from tidelock.csnlog.core.refusals import Reject, judge
from tidelock.csnlog.core.results import Committed, Ok, Refused
from tidelock.csnlog.core.store import Create
from tidelock.csnlog.log import CsnLog, Proposal
from tidelock.errors import LabelExistsError, UnavailableError
from tidelock.replica_agent.storage.catalog_reads import EndingLabel
from tidelock.replica_agent.transactions.ending.labels import Labels
from tidelock.replica_agent.transactions.ending.outcome_retention import OutcomeRetention
from tidelock.replica_agent.transactions.ending.settlement import Settlement
from tidelock.replica_agent.transactions.transaction import Transaction, TransactionLease

LABEL: Final = "query"
#: The transaction under the label at the beginning, if there is one: of the first home.
FIRST: Final = Tid(Csn(1), NAMES[0], 1, 99)


class LabelRun(NamedTuple):
    """A run of a batch at a home."""

    home: int
    batch: int


class LabelScene(NamedTuple):
    """The whole state of the world of labels."""

    #: The states of ZooKeeper, oldest first, and the oldest that the session of each home may still read.
    history: tuple[int, ...]
    seen: tuple[int, ...]
    #: The answers to each run so far; None when it has ended, or its home has died.
    runs: tuple[tuple[Heard, ...] | None, ...]
    #: The answers to the home that gives its label back; None while it does not.
    giver: tuple[Heard, ...] | None
    #: Batches in the order of their commits, each with the life of the label.
    done: tuple[tuple[int, int], ...]
    life: int
    crashes: int

    def hears(self, which: int, script: tuple[Heard, ...] | None) -> LabelScene:
        """The same with a run that has heard something."""
        return self._replace(runs=(*self.runs[:which], script, *self.runs[which + 1 :]))

    def sees(self, home: int, state: int) -> LabelScene:
        """The same with a session that has seen a state, by its place in the history."""
        return self._replace(seen=(*self.seen[:home], state, *self.seen[home + 1 :]))


class RunLog(CsnLog):
    """The log of a run: labels are read as the product does, and a commit is its multi and no more."""

    def __init__(self, store: AnsweredStore, home: int) -> None:
        self._home, state = home, first_life(NAMES[home])
        own = OwnSession(
            replica=NAMES[home], boot=state.boot, disk=state.disk, nonce=state.nonce, fence=0,
            cluster=ClusterState("c", FORMAT_VERSION, 2, 1000), tail=CSN_NONE, horizon=CSN_NONE,
        )  # fmt: skip
        super().__init__(
            store,
            session=own,
            limits=batch.LogLimits(),
            clocks=own_clock(),
            deliver=_nowhere,
            on_state=lambda _, __: None,
        )
        let_write(self, Follower(Csn(1), 4))

    async def commit(self, proposal: Proposal, *, timeout_s: float) -> Committed:
        """Send the product's multi, alone."""
        del timeout_s
        return await self.send(proposal, self.plan(proposal))

    def plan(self, proposal: Proposal) -> batch.CommitPlan:
        """The multi of a proposal."""
        items = (batch.Queued.of(proposal),)
        return batch.plan(items, home=NAMES[self._home], fence=0, epoch=0, epoch_version=0)

    async def send(self, proposal: Proposal, plan: batch.CommitPlan) -> Committed:
        """Apply a multi; errors as the committer would have them."""
        match await self._store.multi(plan.ops(NO_CLOCK)):
            case Ok(value=values):
                return Committed(tree.csn_of(str(values[-1])))
            case Refused(reason, index):
                element = plan.elements[index]
                judgement = judge(element.part, reason)
                assert isinstance(judgement, Reject)
                raise to_error(proposal, Rejected(judgement.cause, element.path))
        raise AssertionError("a multi without an answer")

    async def barrier(self) -> Csn:
        """The CSN of another's run is not what is explored."""
        raise UnavailableError("not now")


class _Proposals:
    """Makes proposals of transactions whose parts have their copies (`ProposalBuilder`)."""

    async def build(self, tx: Transaction, timeout_s: float) -> Proposal:
        """Return the proposal of a transaction that changes nothing but its label."""
        del timeout_s
        return Proposal(TidRecord(str(tx.tid), label=tx.label, batch=tx.batch), {}, (), tx.label)


class _EmptyCatalog:
    """A catalog that knows no outcome."""

    def run(self, _: str) -> None:
        """None is known."""

    def run_of_batch(self, _: str, __: int) -> None:
        """Nor that of a batch."""


class Labelling:
    """The model; see the module.

    Args:
        runs: They all begin at once.
        begun: Whether batch 0 is committed already, and its label old enough to be given back.
        crashes: How many runs end with their home's death.
        log: The product's; a planted bug may give another.
    """

    faults = frozenset({"crash"})
    idle: frozenset[str] = frozenset()

    def __init__(
        self,
        replays: Replays,
        runs: Sequence[LabelRun],
        *,
        begun: bool = False,
        crashes: int = 0,
        log: type[RunLog] = RunLog,
    ) -> None:
        first = new_cluster(NAMES, (), epoch_limit=1000)
        if begun:
            first.apply([Create(tree.label(LABEL), codec.encode_label(LabelState(str(FIRST), 0)))], 0)
        self.ensemble = Ensemble(first)
        self._replays, self._runs, self._log = replays, tuple(runs), log
        done = ((0, 0),) if begun else ()
        giver = () if begun else None
        self._first = LabelScene((0,), (0, 0), ((),) * len(runs), giver, done, 0, crashes)
        self._turns: dict[tuple[int, tuple[Heard, ...]], Turn] = {}

    def initial(self) -> State:
        """All runs are about to look at the label."""
        return self._first

    # ---------------------------------------------------------------------------------------------- moves

    def moves(self, state: State) -> Iterator[tuple[Move, LabelScene | Broken]]:
        """All that can happen next."""
        assert isinstance(state, LabelScene)
        for which, script in enumerate(state.runs):
            if script is not None:
                yield from self._goes_on(state, which, script, self._runs[which].home)
                if state.crashes:
                    yield ("crash", which), state.hears(which, None)._replace(crashes=state.crashes - 1)
        if state.giver is not None:
            yield from self._goes_on(state, _GIVER, state.giver, 0)

    def _goes_on(
        self, s: LabelScene, which: int, script: tuple[Heard, ...], home: int
    ) -> Iterator[tuple[Move, LabelScene | Broken]]:
        """One read, of any state that may be seen, or the multi."""
        turn = self._turn(which, script)
        if isinstance(turn, AsksRead):
            for at in range(s.seen[home], len(s.history)):
                heard = hear(self.ensemble, s.history[at], turn.path)
                yield ("read", which, at), self._told(s.sees(home, at), which, (*script, heard))
        else:
            assert isinstance(turn, AsksMulti), turn
            result, after = self.ensemble.apply(s.history[-1], self.ensemble.multis.number(turn.ops))
            if after != s.history[-1]:
                s = s._replace(history=(*s.history, after))
                broken = self._ended(s) if which == _GIVER else None
                if broken is not None:
                    yield ("multi", which), broken
                    return
                s = s._replace(life=s.life + (which == _GIVER and self._label(after) is None))
            s = s.sees(home, len(s.history) - 1)
            yield ("multi", which), self._told(s, which, (*script, Heard(result)))

    def _told(self, s: LabelScene, which: int, script: tuple[Heard, ...]) -> LabelScene | Broken:
        """Return the state after a run, or the giver, has received its answers."""
        turn = self._turn(which, script)
        if which == _GIVER:
            # False: to be tried again with the next cleaning, when the label is read again.
            return s._replace(giver=None if isinstance(turn, Returned) else script)
        run = self._runs[which]
        match turn:
            case Returned(Committed()):
                earlier = [number for number, life in s.done if life == s.life]
                if earlier and run.batch <= earlier[-1]:
                    return Broken("I7 NOCONFLICT", f"batch {run.batch} counts behind batch {earlier[-1]}")
                return s.hears(which, None)._replace(done=(*s.done, (run.batch, s.life)))
            case RunRaised(LabelExistsError()) if any(number >= run.batch for number, _ in s.done):
                return s.hears(which, None)
            case AsksRead() | AsksMulti():
                return s.hears(which, script)
        return Broken("I17 TRUTHFUL", f"a run of batch {run.batch} ends {turn}")

    def _label(self, state: int) -> LabelState | None:
        found = self.ensemble.read(state, tree.label(LABEL))
        return codec.decode_label(found.value.data) if isinstance(found, Ok) else None

    def _ended(self, s: LabelScene) -> Broken | None:
        """Only the label as its home has known it may be given back."""
        before = self._label(s.history[-2])
        if self._label(s.history[-1]) is None and before is not None and before.tid != str(FIRST):
            return Broken("I12 GC-SAFE", f"the label of {before.tid}, which is young, is given back")
        return None

    # ---------------------------------------------------------------------------------------- conversations

    def _turn(self, which: int, script: tuple[Heard, ...]) -> Turn:
        key = (which, script)
        if key not in self._turns:
            store = AnsweredStore(self.ensemble, script)
            asked = _give_back(store) if which == _GIVER else self._commit(store, which)
            self._turns[key] = self._replays.run(asked)
        return self._turns[key]

    def _commit(self, store: AnsweredStore, which: int) -> Coroutine[Any, Any, Committed]:
        """A run, from where its parts have their copies on."""
        run = self._runs[which]
        tid = Tid(Csn(1), NAMES[run.home], 1, which + 1)
        log = self._log(store, run.home)
        unused = cast("Any", None)
        labels = Labels(log, cast("Any", _EmptyCatalog()), unused, _SETTINGS)
        settlement = Settlement(
            settings=_SETTINGS, log=log, proposals=cast("Any", _Proposals()), labels=labels,
            validation=unused, order=unused, clock=lambda: 0.0,
        )  # fmt: skip
        tx = Transaction(
            tid=tid,
            reads_from=tid.snapshot,
            begun_at=0.0,
            lease=TransactionLease(seconds=1.0, until=1.0),
            label=LABEL,
            batch=run.batch,
        )
        return settlement.settle(tx, deadline=1.0)

    # ------------------------------------------------------------------------------------------- promises

    def check(self, state: State) -> Broken | None:
        """Promises are checked at each step, not in a state."""
        return None

    def unsettled(self, state: State) -> Broken | None:
        """In the end every run has ended, and the last batch of those that did not die counts."""
        assert isinstance(state, LabelScene)
        if any(script is not None for script in state.runs):
            return Broken("I14 LIVE", "a run goes on for ever")
        last = max(run.batch for run in self._runs)
        if state.crashes == self._first.crashes and last not in {number for number, _ in state.done}:
            return Broken("I14 LIVE", f"batch {last} never counts")
        return None

    def describe(self, state: State, move: Move) -> str:
        """A move in words."""
        del state
        which = int(str(move[1]))
        who = "the label's home" if which == _GIVER else f"run {which} ({self._runs[which]})"
        words = {"read": "reads", "multi": "sends its multi", "crash": "dies"}
        return f"{who} {words[str(move[0])]}" + (f" state {move[2]}" if move[0] == "read" else "")


#: The home that gives the label back, as the number of a run.
_GIVER: Final = -1


class _Settings:
    """As far as commits under a label need them."""

    commit_gather_s = 0.0
    head_turn_s = 1.0
    wait_bound_s = 1.0


_SETTINGS: Final = cast("Any", _Settings())


async def _give_back(store: AnsweredStore) -> bool:
    """The retention of the label, as its home knows it, is over."""
    fenced = FencedLog(store, NAMES[0], 0).fenced
    outcomes = OutcomeRetention(NAMES[0], cast("Any", None), store, fenced)
    return await outcomes._give_back([EndingLabel(str(FIRST), LABEL, True)])


async def _nowhere(_: list[LogRecord]) -> None:
    """Do nothing: no records are delivered."""
