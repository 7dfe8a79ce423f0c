"""Pins against horizon against collection, on two replicas: what is explored of history.

Pins are written by the product's ``Snapshots``, the horizon is raised by its ``HorizonMover``, and a catalog
is the product's: what a record makes visible, which bounds are noted, and what is deleted below them.
Modelled are ZooKeeper's rules, transactions, and how far a replica has applied the log (``known_log``).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from tests.sim.explore.answers import AnsweredStore, FencedLog, Heard, hear
from tests.sim.explore.ensemble import Ensemble, first_life, new_cluster
from tests.sim.explore.known_log import FIRST_TABLE, KnownLog
from tests.sim.explore.replay import AsksMulti, AsksRead, Replays, Returned, RunRaised, Turn
from tests.sim.explore.search import Broken, Move, State
from tests.sim.explore.world import NAMES
from tests.support.wall_clocks import own_clock
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId
from tidelock.csnlog.core.model import Progress
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Check, Create, Delete, SetData
from tidelock.replica_agent.snapshots.horizon import HorizonMover
from tidelock.replica_agent.snapshots.pinned import Pin, Snapshots
from tidelock.replica_agent.storage.catalog_garbage import Collectables
from tidelock.replication.core.horizon_rules import Bound

LAST: Final = Csn(3)
PIN: Final = "r1-1-1"

# The last answer that the client of the pin has received.
NONE, ASKED, GRANTED, REJECTED, ENDED = range(5)

Next = tuple[Move, "History_ | Broken"]


class CollectingReplica(NamedTuple):
    """A replica: its process, its catalog, and what it has under way."""

    up: bool = True
    fence: int = 0
    applied: Csn = Csn(1)
    #: Its catalog, by its number.
    catalog: int = 0
    #: The newest CSN that is older than the retention of the first table.
    aged: Csn = CSN_NONE
    #: S of its open transaction.
    tx: Csn | None = None
    #: A write of its progress that is under way, by its number; -1 = none.
    publishing: int = -1
    #: Raising the horizon: what was answered so far.
    raising: tuple[Heard, ...] | None = None


class CollectingBudget(NamedTuple):
    """How often each thing may still happen."""

    pin: int = 0
    tx: int = 0
    crash: int = 0
    strike: int = 0


class History_(NamedTuple):  # noqa: N801 - the state of the world, beside the product's class
    """The whole state of the world of pins and history."""

    tree: int
    replicas: tuple[CollectingReplica, ...]
    budget: CollectingBudget
    pin: int = NONE
    pinned: Csn = Csn(0)
    pinning: tuple[Heard, ...] = ()
    #: Multis of processes that died, which may still arrive.
    late: frozenset[int] = frozenset()
    struck: bool = False

    def but(self, which: int, **changes: Any) -> History_:
        """The same with one replica changed."""
        changed = self.replicas[which]._replace(**changes)
        return self._replace(replicas=(*self.replicas[:which], changed, *self.replicas[which + 1 :]))

    def less(self, name: str) -> History_:
        """The same with less of a budget."""
        return self._replace(budget=self.budget._replace(**{name: getattr(self.budget, name) - 1}))


def _turn_of(path: str) -> int:
    """Reads of one turn follow each other at once: what happens between them makes no difference."""
    if path in {tree.HORIZON, tree.PINS}:
        return 0
    if path.startswith(f"{tree.PINS}/"):
        return 1
    return 3 if path == tree.progress(NAMES[1]) else 2


class Collecting:
    """The model; see the module.

    Args:
        drops: CSN 3 drops the first table.
        keeps: The first table has its own retention, which ends for each CSN at any time at each replica;
            that of the others has ended from the beginning.
        raisers: How many replicas raise the horizon.
        alone: The second replica has applied all, and does nothing.
        behind: The second replica is one record behind.
        slowly: What a replica publishes may be under way for any time.
    """

    faults = frozenset({"crash", "late", "strike", "expire"})
    idle: frozenset[str] = frozenset()

    def __init__(
        self,
        replays: Replays,
        *,
        drops: bool = False,
        keeps: bool = False,
        raisers: int = 1,
        alone: bool = False,
        behind: bool = False,
        slowly: bool = False,
        **budget: int,
    ) -> None:
        first = new_cluster(NAMES, (), epoch_limit=1000)
        self._second = LAST if alone else Csn(1 if behind else 2)
        begun = zip(NAMES, (Csn(1), LAST if alone else Csn(1)), strict=True)
        progress = [(name, codec.encode_progress(Progress(csn, csn))) for name, csn in begun]
        first.apply([Create(tree.PINS), *(Create(tree.progress(name), data) for name, data in progress)], 0)
        self.ensemble = Ensemble(first)
        self._replays, self._raisers, self._budget = replays, raisers, CollectingBudget(**budget)
        self._slowly, self._alone = slowly, alone
        self._keeps = keeps
        self._log = KnownLog(drops=drops, properties={"retention_s": "9"} if keeps else None)
        self._turns: dict[tuple[object, ...], Turn] = {}

    def initial(self) -> State:
        """Part A is there, B is not."""
        reached = (Csn(2), self._second)
        replicas = (CollectingReplica(applied=csn, catalog=self._log.until(csn)) for csn in reached)
        return History_(0, tuple(replicas), self._budget)

    # ---------------------------------------------------------------------------------------------- moves

    def moves(self, state: State) -> Iterator[Next]:
        """All that can happen next."""
        assert isinstance(state, History_)
        for which, one in enumerate(state.replicas):
            if self._alone and which:
                continue
            if one.up:
                yield from self._of_replica(state, which, one)
            elif not (state.struck and which):
                yield ("start", which), self._starts(state, which, one)
        yield from self._of_client(state)
        for multi in state.late:
            yield ("late", multi), self._apply(state._replace(late=state.late - {multi}), multi)[0]

    def _of_replica(self, s: History_, which: int, one: CollectingReplica) -> Iterator[Next]:
        if one.applied < LAST and self._has_parts_of(s, Csn(one.applied + 1)):
            yield ("apply", which), s.but(which, **self._applies(one)._asdict())
        if self._keeps and one.aged < one.applied:
            yield ("age", which), s.but(which, aged=Csn(one.aged + 1))
        if one.tx is None and s.budget.tx:
            yield ("begin", which), s.less("tx").but(which, tx=one.applied)
        if one.tx is not None:
            yield ("end", which), s.but(which, tx=None)
        if one.publishing >= 0:
            yield ("published", which), self._apply(s, one.publishing)[0].but(which, publishing=-1)
        elif (multi := self._progress(s, which, one)) is not None:
            sent = s.but(which, publishing=multi) if self._slowly else self._apply(s, multi)[0]
            yield ("publish", which), sent
        yield from self._of_collector(s, which, one)
        if one.raising is not None:
            yield ("raise", which), self._raises(s, which, one)
        elif which < self._raisers and self.horizon(s) < LAST:
            yield ("raise", which), self._raises(s, which, one._replace(raising=()))
        if s.budget.crash and not which:
            yield ("crash", which), self._dies(s.less("crash"), which, one)
        if s.budget.strike and which:
            yield ("strike", which), self._struck(s.less("strike"))

    def _of_collector(self, s: History_, which: int, one: CollectingReplica) -> Iterator[Next]:
        noted = self._notes(one, self.seen_horizon(s, which))
        if noted != one.catalog:
            yield ("note", which), s.but(which, catalog=noted)
        for part in self._log.removed(one.catalog):
            yield ("delete", which, part), s.but(which, catalog=self._log.deleted(one.catalog, part))
        forgotten = self._log.forgotten(one.catalog)
        if forgotten != one.catalog:
            yield ("forget", which), s.but(which, catalog=forgotten)

    def _of_client(self, s: History_) -> Iterator[Next]:
        if s.budget.pin and s.pin == NONE and s.replicas[0].up:
            yield ("ask", 2), s.less("pin")._replace(pin=ASKED, pinned=Csn(2), pinning=())
        if s.pin == ASKED and s.replicas[0].up:
            yield ("pin", 0), self._pins(s)
        if s.pin == GRANTED or (s.pin in {REJECTED, ENDED} and self._is_pinned(s)):
            yield ("close", 0), self._closes(s)

    # -------------------------------------------------------------------------------------------- replicas

    def horizon(self, s: History_) -> Csn:
        """``csn/horizon``."""
        found = self.ensemble.read(s.tree, tree.HORIZON)
        assert isinstance(found, Ok)
        return codec.decode_csn(found.value.data)

    def seen_horizon(self, s: History_, which: int) -> Csn:
        """Return the horizon as a collector sees it; a planted bug may return another one."""
        return self.horizon(s)

    def _is_pinned(self, s: History_) -> bool:
        return isinstance(self.ensemble.read(s.tree, tree.pin(PIN)), Ok)

    def _applies(self, one: CollectingReplica) -> CollectingReplica:
        """The next record becomes visible; its parts have come before."""
        csn = Csn(one.applied + 1)
        staged = self._log.staged(one.catalog, self._log.added(csn))
        return one._replace(applied=csn, catalog=self._log.applied(staged, csn))

    def _notes(self, one: CollectingReplica, horizon: Csn) -> int:
        """The catalog with the bounds that are seen now."""
        retained = self._log.catalogs.told(one.catalog, "retentions", Collectables.retentions)
        return self._log.noted(one.catalog, horizon, dict.fromkeys(retained, one.aged))

    def _gone(self, one: CollectingReplica) -> frozenset[PartId]:
        """The parts that a replica has applied and deleted."""
        return self._log.added_until(one.applied) - self._log.held(one.catalog)

    def _has_parts_of(self, s: History_, csn: Csn) -> bool:
        """Tell whether the parts that a record adds are somewhere; the first replica has made them."""
        made, other = self._log.added(csn), s.replicas[1]
        return not made & self._gone(s.replicas[0]) or (other.applied >= csn and not made & self._gone(other))

    def _progress(self, s: History_, which: int, one: CollectingReplica) -> int | None:
        """The write of what has changed, as the product computes it."""
        oldest = min(one.applied, one.tx if one.tx is not None else one.applied)
        if not which and s.pin in {ASKED, GRANTED}:
            oldest = min(oldest, s.pinned)
        data = codec.encode_progress(Progress(one.applied, oldest))
        found = self.ensemble.read(s.tree, tree.progress(NAMES[which]))
        assert isinstance(found, Ok)
        if found.value.data == data:
            return None
        fence = Check(tree.session(NAMES[which]), one.fence)
        return self.ensemble.multis.number((fence, SetData(tree.progress(NAMES[which]), data)))

    def _apply(self, s: History_, multi: int) -> tuple[History_, int]:
        result, after = self.ensemble.apply(s.tree, multi)
        return s._replace(tree=after), result

    def _dies(self, s: History_, which: int, one: CollectingReplica) -> History_:
        late = {one.publishing} if one.publishing >= 0 else set()
        for turn in (
            self._raise_turn(which, one),
            self._pin_turn(s) if s.pin == ASKED and not which else None,
        ):
            if isinstance(turn, AsksMulti):
                late.add(self.ensemble.multis.number(turn.ops))
        after = s._replace(late=s.late | late)
        if s.pin in {ASKED, GRANTED} and not which:
            after = after._replace(pin=ENDED if s.pin == ASKED else s.pin)
        return after.but(which, up=False, tx=None, publishing=-1, raising=None)

    def _starts(self, s: History_, which: int, one: CollectingReplica) -> History_:
        """A start raises the fence; what the former life has sent can land no more."""
        found = self.ensemble.read(s.tree, tree.session(NAMES[which]))
        assert isinstance(found, Ok)
        change = SetData(tree.session(NAMES[which]), found.value.data, found.value.version)
        after, _ = self._apply(s, self.ensemble.multis.number((change,)))
        return after.but(which, up=True, fence=found.value.version + 1)._replace(late=frozenset())

    def _struck(self, s: History_) -> History_:
        """The second replica is struck: nothing is held for it any more."""
        struck = codec.encode_session(first_life(NAMES[1]).__class__(2, "disk", "struck", "struck"))
        found = self.ensemble.read(s.tree, tree.session(NAMES[1]))
        assert isinstance(found, Ok)
        change = SetData(tree.session(NAMES[1]), struck, found.value.version)
        after, _ = self._apply(s, self.ensemble.multis.number((change,)))
        return self._dies(after, 1, after.replicas[1])._replace(struck=True, late=s.late)

    # ---------------------------------------------------------------------------------------- conversations

    def _raises(self, s: History_, which: int, one: CollectingReplica) -> History_ | Broken:
        """One turn of a raise: a read, or its multi."""
        turn = self._raise_turn(which, one)
        assert one.raising is not None
        match turn:
            case AsksRead(path):
                heard = one.raising
                while isinstance(turn, AsksRead) and _turn_of(turn.path) == _turn_of(path):
                    heard = (*heard, hear(self.ensemble, s.tree, turn.path))
                    turn = self._raise_turn(which, one._replace(raising=heard))
                return s.but(which, raising=None if isinstance(turn, Returned) else heard)
            case AsksMulti(ops):
                after, result = self._apply(s, self.ensemble.multis.number(ops))
                heard = (*one.raising, Heard(result))
                turn = self._raise_turn(which, one._replace(raising=heard))
                return after.but(which, raising=None if isinstance(turn, Returned) else heard)
        assert isinstance(turn, RunRaised)
        return Broken("I15 FAILSTOP", f"raising the horizon ends with {turn.error!r}")

    def _raise_turn(self, which: int, one: CollectingReplica) -> Turn | None:
        if one.raising is None:
            return None
        key = ("raise", which, one.fence, one.raising)
        if key not in self._turns:
            store = AnsweredStore(self.ensemble, one.raising)
            history = HorizonMover(
                replica=NAMES[which], settings=None, store=store, members=dict, retained=lambda _: LAST,  # type: ignore[arg-type]
                tags=dict, records_kept=lambda: 1,
                log=FencedLog(store, NAMES[which], one.fence), clock=lambda: 0.0,  # type: ignore[arg-type]
            )  # fmt: skip
            self._turns[key] = self._replays.run(history._raise(Bound(LAST, "retention")))
        return self._turns[key]

    def _pins(self, s: History_) -> History_ | Broken:
        turn = self._pin_turn(s)
        match turn:
            case AsksRead(path):
                return self._heard(s, hear(self.ensemble, s.tree, path))
            case AsksMulti(ops):
                after, result = self._apply(s, self.ensemble.multis.number(ops))
                return self._heard(after, Heard(result))
        raise AssertionError(turn)

    def _heard(self, s: History_, heard: Heard) -> History_:
        """The client's pin is one answer further; it may be granted by that, or refused."""
        after = s._replace(pinning=(*s.pinning, heard))
        turn = self._pin_turn(after)
        if isinstance(turn, Returned):
            return after._replace(pin=GRANTED, pinning=())
        return after._replace(pin=REJECTED, pinning=()) if isinstance(turn, RunRaised) else after

    def _pin_turn(self, s: History_) -> Turn:
        key = ("pin", s.replicas[0].fence, s.pinned, s.pinning)
        if key not in self._turns:
            store = AnsweredStore(self.ensemble, s.pinning)
            snapshots = Snapshots(
                replica=NAMES[0], boot=1, copies=lambda: 2, settings=SimpleNamespace(), store=store,  # type: ignore[arg-type]
                log=FencedLog(store, NAMES[0], s.replicas[0].fence), reader=None, waiters=None, peers=None,  # type: ignore[arg-type]
                clock=lambda: 0.0, clocks=own_clock(),
            )  # fmt: skip
            self._turns[key] = self._replays.run(snapshots._write(Pin(PIN, s.pinned, 60.0, 60.0)))
        return self._turns[key]

    def _closes(self, s: History_) -> History_:
        """The pin is deleted, by its owner or by one who saw no renewal."""
        after, _ = self._apply(s, self.ensemble.multis.number((Delete(tree.pin(PIN), -1),)))
        return after._replace(pin=ENDED)

    # ------------------------------------------------------------------------------------------- promises

    def check(self, state: State) -> Broken | None:
        """I12: what a pin, an open transaction or a replica that lags needs is there."""
        assert isinstance(state, History_)
        needs = [
            (which, one.tx, "its transaction")
            for which, one in enumerate(state.replicas)
            if one.tx is not None
        ]
        if state.pin == GRANTED:
            # The client may fail over to any replica.
            needs += [(which, state.pinned, "a pin") for which in range(len(state.replicas))]
        for which, csn, who in needs:
            one = state.replicas[which]
            if one.applied < csn or (state.struck and which):
                continue
            if self._log.catalogs.told(one.catalog, "horizon", Collectables.horizon) > csn:
                return Broken("I12 GC-SAFE", f"{NAMES[which]} refuses CSN {csn}, which {who} reads")
        for which, one in enumerate(state.replicas):
            if state.struck and which:
                continue
            if broken := self._log.dishonest(one.catalog, one.applied, NAMES[which]):
                return broken
            for csn in map(Csn, range(max(one.aged, 1), one.applied + 1) if self._keeps else ()):
                if not self._log.keeps(one.catalog, csn, FIRST_TABLE):
                    return Broken("I12 GC-SAFE", f"{NAMES[which]} refuses CSN {csn}, which a table retains")
            if not self._has_parts_of(state, Csn(one.applied + 1)):
                return Broken("I12 GC-SAFE", f"{NAMES[which]} has not applied what nobody has any more")
        return None

    def unsettled(self, state: State) -> Broken | None:
        """In the end all that was removed is gone, with the definitions that no reader needs."""
        assert isinstance(state, History_)
        for which, one in enumerate(state.replicas):
            if (state.struck or self._alone) and which:
                continue
            if "A" not in self._gone(one):
                return Broken("I13 NOLEAK", f"{NAMES[which]} never deletes A")
            versions = self._log.catalogs.told(
                one.catalog, "versions", lambda read: read.versions(FIRST_TABLE)
            )
            if len(versions) > 1:
                return Broken("I13 NOLEAK", f"{NAMES[which]} never forgets the definition of before the drop")
        return None

    def describe(self, state: State, move: Move) -> str:
        """A move in words."""
        kind, about, *more = move
        who = NAMES[about] if isinstance(about, int) and about < len(NAMES) else ""
        return _WORDS[str(kind)].format(who=who, about=about, part=more[0] if more else "")


_WORDS: Final = {
    "apply": "{who} applies the next record",
    "age": "for {who}, one more CSN is older than the retention of the first table",
    "begin": "a transaction begins at {who}",
    "end": "the transaction at {who} ends",
    "publish": "{who} sends its progress",
    "published": "the progress of {who} arrives",
    "note": "{who} notes the horizon",
    "delete": "{who} deletes {part}",
    "forget": "{who} forgets the definition of before the drop",
    "raise": "{who} goes on raising the horizon: a read, or the multi",
    "crash": "{who} dies",
    "start": "{who} starts",
    "strike": "{who} is struck",
    "late": "a multi of the former life arrives",
    "ask": "a client of r1 asks for a pin at CSN {about}",
    "pin": "{who} goes on writing the pin: a read, or the multi",
    "close": "the pin ends",
}
