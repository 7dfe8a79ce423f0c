"""The tail against those who read the log: a follower that lags, a question for an outcome, a second mover.

The follower may lose its power: then it goes back to what its catalog had made durable.

``move_tail``, ``delete_below``, ``read_to_end``, ``publish``, ``CsnLog.find`` and the resolver of outcomes
are the product's. The log is whole from the beginning: two genesis records and three commits of the first
replica, which has applied them all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NamedTuple
from unittest import mock

from tests.sim.explore.answers import AnsweredStore, FencedLog, Heard, hear
from tests.sim.explore.ensemble import Ensemble, first_life, new_cluster
from tests.sim.explore.procedures import READ_AHEAD
from tests.sim.explore.replay import AsksMulti, AsksRead, Replays, Returned, RunRaised, Turn, let_write
from tests.sim.explore.search import Broken, Move, State
from tests.sim.explore.world import NAMES
from tests.support.clusters.resolving import GivenLocal, resolver_over
from tests.support.wall_clocks import own_clock
from tidelock.csnlog import tail
from tidelock.csnlog.cluster.bootstrap import OwnSession
from tidelock.csnlog.cluster.replica_progress import publish
from tidelock.csnlog.cluster.start_check import FORMAT_VERSION
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.batch import LogLimits
from tidelock.csnlog.core.follower import Follower
from tidelock.csnlog.core.ids import CSN_NONE, Csn, Tid
from tidelock.csnlog.core.model import ClusterState, LogRecord, Progress, Record, RecordKind, TidRecord
from tidelock.csnlog.core.results import Committed, Ok
from tidelock.csnlog.core.store import Create
from tidelock.csnlog.log import CsnLog
from tidelock.csnlog.reading import BelowTailError, read_to_end
from tidelock.replica_agent.transactions.outcomes.rules import CLIENT

HOME, FOLLOWER = NAMES
FIRST, LAST = Csn(2), Csn(4)
#: The transaction that is asked about: not the last one, and behind where the follower begins.
ASKED_CSN: Final = Csn(3)

#: Moves the tail over a store, under a fence.
Mover = Callable[[Any, Any], Awaitable[None]]
#: Publishes a progress under a fence, as the product's ``publish``.
Publisher = Callable[..., Awaitable[bool]]
Next = tuple[Move, "TruncatingState | Broken"]


def _tid(csn: int) -> Tid:
    return Tid(Csn(1), HOME, 1, csn)


async def truncate(store: Any, fenced: Any) -> None:
    """Move the tail, then delete what is below: as the agent's chore does."""
    moved = await tail.move_tail(store, fenced, 1)
    if moved is not None and moved > CSN_NONE:
        await tail.delete_below(store, fenced, moved)


class _Forces(Exception):  # noqa: N818 - no error: it ends a turn at the write that the follower waits for
    """The publisher waits for the catalog."""


class TruncatingState(NamedTuple):
    """The state of the world: ZooKeeper, the applied records, the requests of each process so far."""

    tree: int
    applied: Csn = Csn(1)
    #: The CSN that a power cut leaves.
    durable: Csn = Csn(1)
    #: The progress that the follower publishes, and whether its catalog was forced since.
    publishing: tuple[Csn, bool] | None = None
    movers: tuple[tuple[Heard, ...] | None, ...] = (None, None)
    reading: tuple[Heard, ...] | None = None
    asking: tuple[Heard, ...] | None = None
    #: Where the follower stood when the question began.
    asked_at: Csn = Csn(1)
    asks: int = 0
    crashes: int = 0
    cuts: int = 0

    def moves_on(self, which: int, script: tuple[Heard, ...] | None) -> TruncatingState:
        """The same with one mover further."""
        return self._replace(movers=(*self.movers[:which], script, *self.movers[which + 1 :]))


class Truncating:
    """The model; see the module.

    Args:
        movers: How many replicas move the tail.
        asks: How often an outcome is asked for.
        crashes: How often a mover dies half-way.
        cuts: How often the follower loses its power.
        mover: The product's; a planted bug may give another.
        publisher: Likewise.
    """

    faults = frozenset({"crash", "cut"})
    idle: frozenset[str] = frozenset({"ask", "asking"})

    def __init__(
        self,
        replays: Replays,
        *,
        movers: int = 1,
        asks: int = 0,
        crashes: int = 0,
        cuts: int = 0,
        mover: Mover = truncate,
        publisher: Publisher = publish,
    ) -> None:
        first = new_cluster(NAMES, (), epoch_limit=1000)
        progress = [codec.encode_progress(Progress(csn, csn)) for csn in (LAST, Csn(1))]
        records = [
            codec.encode_record(Record(RecordKind.COMMIT, HOME, 0, (TidRecord(str(_tid(csn))),)))
            for csn in range(FIRST, LAST + 1)
        ]
        first.apply(
            [
                *(Create(tree.progress(name), data) for name, data in zip(NAMES, progress, strict=True)),
                *(Create(tree.record_prefix(0), data, sequential=True) for data in records),
            ],
            0,
        )
        self.ensemble = Ensemble(first)
        self._replays, self._movers, self._mover, self._publisher = replays, movers, mover, publisher
        self._first = TruncatingState(0, asks=asks, crashes=crashes, cuts=cuts)
        self._turns: dict[tuple[object, ...], Turn] = {}

    def initial(self) -> State:
        """The follower has applied nothing, and the tail stands at 0."""
        return self._first

    # ---------------------------------------------------------------------------------------------- moves

    def moves(self, state: State) -> Iterator[Next]:
        """All that can happen next."""
        assert isinstance(state, TruncatingState)
        for which in range(self._movers):
            script = state.movers[which]
            if script is not None:
                yield ("move", which), self._moves(state, which, script)
                if state.crashes:
                    yield ("crash", which), state.moves_on(which, None)._replace(crashes=state.crashes - 1)
            elif self._may_move(state):
                yield ("move", which), self._moves(state, which, ())
        if state.applied < LAST:
            yield ("read", 0), self._reads(state)
        if state.publishing is not None:
            yield ("publishing", 0), self._publishes(state, *state.publishing)
        elif self._published(state) < state.applied:
            yield ("publish", 0), self._publishes(state, state.applied, forced=False)
        if state.cuts and state.durable < state.applied:
            back = state._replace(applied=state.durable, cuts=state.cuts - 1)
            yield ("cut", 0), back._replace(publishing=None, reading=None, asking=None)
        if state.asking is not None:
            yield ("asking", 0), self._asks(state, state.asking)
        elif state.asks:
            begun = state._replace(asks=state.asks - 1, asked_at=state.applied)
            yield ("ask", 0), self._asks(begun, ())

    def _tail(self, s: TruncatingState) -> Csn:
        return self.ensemble.tail(s.tree)

    def _published(self, s: TruncatingState) -> Csn:
        found = self.ensemble.read(s.tree, tree.progress(FOLLOWER))
        assert isinstance(found, Ok)
        return codec.decode_progress(found.value.data).snapshot

    def _kept(self, s: TruncatingState) -> int:
        return len(self.ensemble.log(s.tree))

    def _may_move(self, s: TruncatingState) -> bool:
        """Tell whether there is something to do: the tail can rise, or records stand below it."""
        return self._tail(s) < self._published(s) or any(
            entry.csn < self._tail(s) for entry in self.ensemble.log(s.tree)
        )

    def _publishes(self, s: TruncatingState, csn: Csn, forced: bool) -> TruncatingState | Broken:
        """The catalog is forced, or the multi is applied."""
        match self._replays.run(self._publish(csn, forced=forced)):
            case RunRaised(_Forces()):
                return s._replace(durable=s.applied, publishing=(csn, True))
            case AsksMulti(ops):
                return self._apply(s._replace(publishing=None), ops)[0]
            case turn:
                return Broken("I15 FAILSTOP", f"publishing the progress ends with {turn}")

    async def _publish(self, csn: Csn, *, forced: bool) -> bool:
        async def force() -> None:
            if not forced:
                raise _Forces

        store = AnsweredStore(self.ensemble, ())
        fenced = FencedLog(store, FOLLOWER, 0).fenced
        return await self._publisher(fenced, FOLLOWER, Progress(csn, csn), force=force)

    def _apply(self, s: TruncatingState, ops: Any) -> tuple[TruncatingState, Heard]:
        result, after = self.ensemble.apply(s.tree, self.ensemble.multis.number(tuple(ops)))
        return s._replace(tree=after), Heard(result)

    # ---------------------------------------------------------------------------------------- conversations

    def _moves(self, s: TruncatingState, which: int, script: tuple[Heard, ...]) -> TruncatingState | Broken:
        """One turn of a mover: its reads up to the next multi, or the multi."""
        turn = self._turn("move", which, script)
        if isinstance(turn, AsksMulti):
            s, heard = self._apply(s, turn.ops)
            script = (*script, heard)
        else:
            script = self._read_on(s, "move", which, script)
        turn = self._turn("move", which, script)
        if isinstance(turn, RunRaised):
            return Broken("I15 FAILSTOP", f"moving the tail ends with {turn.error!r}")
        return s.moves_on(which, None if isinstance(turn, Returned) else script)

    def _reads(self, s: TruncatingState) -> TruncatingState | Broken:
        """One read of the follower; at its end it has applied what it has read."""
        script = self._read_on(s, "read", s.applied, s.reading or (), once=True)
        turn = self._turn("read", s.applied, script)
        match turn:
            case Returned(records) if len(records) == LAST - s.applied:
                return s._replace(applied=LAST, reading=None)
            case Returned(records):
                return Broken(
                    "I4 DURABLE", f"the log ends for the follower behind {len(records)} of its records"
                )
            case RunRaised(BelowTailError() as error):
                return Broken("I12 GC-SAFE", f"the follower is told: {error.message}")
            case RunRaised(error):
                return Broken("I15 FAILSTOP", f"the follower ends with {error!r}")
        return s._replace(reading=script)

    def _asks(self, s: TruncatingState, script: tuple[Heard, ...]) -> TruncatingState | Broken:
        """One read for an outcome."""
        script = self._read_on(s, "ask", s.asked_at, script, once=True)
        turn = self._turn("ask", s.asked_at, script)
        match turn:
            case AsksRead():
                return s._replace(asking=script)
            case RunRaised(BelowTailError()):
                return s._replace(asking=None)  # to be asked again: the follower has taken what is deleted
            case Returned(Committed(csn=found)) if found == ASKED_CSN:
                return s._replace(asking=None)
        return Broken("I8 DECIDED", f"{_tid(ASKED_CSN)} is committed, and its outcome is {turn}")

    def _read_on(
        self, s: TruncatingState, kind: str, about: int, script: tuple[Heard, ...], *, once: bool = False
    ) -> tuple[Heard, ...]:
        """Answer reads from the present state: the next one, or all up to the next multi."""
        turn = self._turn(kind, about, script)
        while isinstance(turn, AsksRead):
            script = (*script, hear(self.ensemble, s.tree, turn.path))
            turn = self._turn(kind, about, script)
            if once:
                break
        return script

    def _turn(self, kind: str, about: int, script: tuple[Heard, ...]) -> Turn:
        key = (kind, about, script)
        if key not in self._turns:
            store = AnsweredStore(self.ensemble, script)
            with mock.patch.object(tail, "DELETES_MAX", 2):
                self._turns[key] = self._replays.run(self._conversation(kind, about, store))
        return self._turns[key]

    def _conversation(self, kind: str, about: int, store: Any) -> Any:
        match kind:
            case "move":
                return self._mover(store, FencedLog(store, NAMES[about], 0).fenced)
            case "read":
                return read_to_end(store, Csn(about + 1), session=1, read_ahead=READ_AHEAD)
        return _outcome(store, Csn(about))

    # ------------------------------------------------------------------------------------------- promises

    def check(self, state: State) -> Broken | None:
        """No record is deleted that the follower lacks."""
        assert isinstance(state, TruncatingState)
        there = {entry.csn for entry in self.ensemble.log(state.tree)}
        lacking = [csn for csn in range(state.applied + 1, LAST + 1) if csn not in there]
        return Broken("I12 GC-SAFE", f"{FOLLOWER} lacks {lacking}, which are deleted") if lacking else None

    def unsettled(self, state: State) -> Broken | None:
        """In the end the follower has the whole log, and only the last record is kept."""
        assert isinstance(state, TruncatingState)
        if state.applied < LAST:
            return Broken("I14 LIVE", f"{FOLLOWER} stays at CSN {state.applied}")
        if self._kept(state) > 1:
            return Broken("I13 NOLEAK", f"{self._kept(state)} records stay for ever")
        return None

    def describe(self, state: State, move: Move) -> str:
        """A move in words."""
        return _WORDS[str(move[0])].format(who=NAMES[int(str(move[1]))])


async def _outcome(store: Any, applied: Csn) -> object:
    """Ask the follower for the outcome of a transaction, at CSN ``applied``."""
    state = first_life(FOLLOWER)
    own = OwnSession(
        replica=FOLLOWER, boot=state.boot, disk=state.disk, nonce=state.nonce, fence=0,
        cluster=ClusterState("c", FORMAT_VERSION, 2, 1000), tail=CSN_NONE, horizon=CSN_NONE,
    )  # fmt: skip
    log = CsnLog(
        store,
        session=own,
        limits=LogLimits(read_ahead=READ_AHEAD),
        clocks=own_clock(),
        deliver=_nowhere,
        on_state=lambda _, __: None,
    )
    follower = Follower(applied, READ_AHEAD)
    follower.next = Csn(applied + 1)
    let_write(log, follower)
    known = Committed(ASKED_CSN) if applied >= ASKED_CSN else None
    local = GivenLocal(replica=FOLLOWER, boot=own.boot, known=lambda _: known)
    return await resolver_over(log, local).outcome(_tid(ASKED_CSN), CLIENT)


async def _nowhere(_: list[LogRecord]) -> None:
    """Do nothing: a question for an outcome delivers no records."""


_WORDS: Final = {
    "move": "{who} goes on moving the tail",
    "crash": "{who} gives up half-way",
    "read": "the follower reads on",
    "publish": "the follower publishes how far it is",
    "publishing": "the follower goes on publishing",
    "cut": "the follower loses its power",
    "ask": "somebody asks the follower for an outcome",
    "asking": "the follower reads on for the outcome",
}
