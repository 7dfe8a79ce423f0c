"""A replica that clones against those who collect: a source that commits go on at, a collector, a sweeper.

The registration (``open_session``), the moves of tail and horizon, the choice of the catalog (``is_usable``),
the catalogs, the manifest and its installation are the product's. Modelled are processes, what a replica
has applied of the log (``known_log``), the bytes of parts, and the lock of one removal. The source holds the
parts that later records add while they are undecided.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tests.sim.explore.answers import AnsweredStore, FencedLog, Heard, hear
from tests.sim.explore.ensemble import Ensemble, new_cluster
from tests.sim.explore.known_log import FIRST_TABLE, KnownLog
from tests.sim.explore.replay import AsksMulti, AsksRead, Replays, Returned, RunRaised, Turn
from tests.sim.explore.search import Broken, Move, State
from tests.sim.explore.world import NAMES
from tidelock.csnlog import tail
from tidelock.csnlog.cluster.bootstrap import KnownState, OwnSession, open_session
from tidelock.csnlog.cluster.replica_progress import locks_needed_from
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId
from tidelock.csnlog.core.model import MemberState, Progress, Record, RecordKind, SessionState
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Check, Create, LinkState, Node, Op, SetData
from tidelock.replica_agent.cloning import manifest as manifests
from tidelock.replica_agent.cloning.sources import is_usable
from tidelock.replica_agent.snapshots.horizon import HorizonMover
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replication.core.horizon_rules import Bound

SOURCE, JOINER = NAMES
LAST: Final = Csn(4)
REMOVAL: Final = Csn(3)
LATER: Final = "C"

Next = tuple[Move, "CloningState | Broken"]

DOWN, REGISTERED, FOLLOWING, SERVES = range(4)


class Manifest(NamedTuple):
    """A catalog on its way: its number, and its CSN."""

    catalog: int
    csn: Csn


class CloningReplica(NamedTuple):
    """The replica that clones: its process, its catalog, its bytes."""

    phase: int = DOWN
    boot: int = 1
    fence: int = 0
    disk: str = ""
    applied: Csn = CSN_NONE
    catalog: int = 0
    #: The CSN of the clone while its parts are fetched.
    base: Csn = CSN_NONE
    manifest: Manifest | None = None


class CloningState(NamedTuple):
    """The whole state of the world of clones."""

    tree: int
    joiner: CloningReplica
    #: The source: what it has applied, and its catalog.
    applied: Csn
    catalog: int
    #: Moves of horizon and tail that are under way.
    raising: tuple[Heard, ...] | None = None
    cutting: tuple[Heard, ...] | None = None
    #: Whether the lock of the removal of A is there.
    lock: bool = True
    crashes: int = 0

    def but(self, **changes: Any) -> CloningState:
        """The same with the joiner changed."""
        return self._replace(joiner=self.joiner._replace(**changes))


class AtOnce:
    """A store whose requests take no time: the start of a boot is one move."""

    link = LinkState.CONNECTED
    session = 1

    def __init__(self, ensemble: Ensemble, state: int) -> None:
        self._ensemble, self.state = ensemble, state

    def on_change(self, listener: Any) -> None:
        """Do nothing: the connection never changes."""

    async def multi(self, ops: tuple[Op, ...]) -> Ok[tuple[object, ...]] | Refused | Unknown:
        """Apply a multi; the sign of life is always well."""
        if any(op.path.endswith("/alive") for op in ops):
            return Ok(tuple(None for _ in ops))
        result, self.state = self._ensemble.apply(self.state, self._ensemble.multis.number(ops))
        return self._ensemble.results.values[result]

    async def get(self, path: str, *, watch: Any = None) -> Ok[Node] | Refused | Unknown:
        """Read a znode."""
        if path.endswith("/alive"):
            return Refused(Reason.NO_NODE)
        return self._ensemble.read(self.state, path)

    async def exists(self, path: str, *, watch: Any = None) -> Ok[Node | None] | Refused | Unknown:
        """Look at a znode."""
        found = self._ensemble.tree(self.state).get(path)
        return Ok(None if found is None else found.node)

    async def children(self, path: str, *, watch: Any = None) -> Ok[tuple[str, ...]] | Refused | Unknown:
        """List a znode."""
        found = self._ensemble.tree(self.state).get(path)
        return Refused(Reason.NO_NODE) if found is None else Ok(tuple(sorted(found.children)))


class Cloning:
    """The model; see the module.

    Args:
        struck: The replica was struck at CSN 2, and has its catalog; else its disk is new.
        behind: The source has applied CSN 2, else CSN 3.
        drops: A is removed with its table, which is dropped.
        whole: Nothing was collected yet, so that a new disk follows the log.
        away: The replica never starts again.
        keep: Records that the tail leaves below the slowest replica.
        crashes: How often the replica that clones dies.
    """

    faults = frozenset({"crash"})
    idle: frozenset[str] = frozenset()

    def __init__(
        self,
        replays: Replays,
        *,
        struck: bool = False,
        behind: bool = False,
        whole: bool = False,
        drops: bool = False,
        away: bool = False,
        keep: int = 1,
        crashes: int = 0,
    ) -> None:
        self._away, self._keep = away, keep
        first = new_cluster(NAMES, (), epoch_limit=1000)
        told, begun = Csn(2) if struck else REMOVAL, Csn(2) if behind else REMOVAL
        session = SessionState(2, "old", "n", "struck" if struck else "serving")
        made, _ = first.apply(
            [
                Create(tree.PINS),
                Create(tree.progress(SOURCE), codec.encode_progress(Progress(begun, begun))),
                Create(tree.progress(JOINER), codec.encode_progress(Progress(told, told))),
                SetData(tree.session(JOINER), codec.encode_session(session)),
                *(
                    Create(
                        tree.record_prefix(0), codec.encode_record(Record(RecordKind.COMMIT, SOURCE, 0)),
                        sequential=True,
                    )
                    for _ in range(2, LAST + 1)
                ),
                *(() if whole else (SetData(tree.HORIZON, codec.encode_csn(Csn(2))),)),
            ],
            0,
        )  # fmt: skip
        assert isinstance(made, Ok), made
        self.ensemble = Ensemble(first)
        self._replays = replays
        self.log = KnownLog(drops=drops, more=LATER)
        joiner = CloningReplica(disk="new")
        if struck:
            joiner = CloningReplica(disk="old", applied=Csn(2), catalog=self.log.until(Csn(2)))
        source = self.log.until(begun, self.log.staged(0, self.log.added_until(LAST)))
        self._first = CloningState(0, joiner, begun, source, crashes=crashes)
        self._turns: dict[tuple[object, ...], Turn] = {}

    def initial(self) -> State:
        """The source has applied CSN 2 or 3; the other replica is down."""
        return self._first

    # ---------------------------------------------------------------------------------------------- moves

    def moves(self, state: State) -> Iterator[Next]:
        """All that can happen next."""
        assert isinstance(state, CloningState)
        yield from self._of_source(state)
        if not self._away:
            yield from self._of_joiner(state, state.joiner)
        if state.crashes and state.joiner.phase != DOWN:
            yield ("crash",), state.but(phase=DOWN, manifest=None)._replace(crashes=state.crashes - 1)

    def _of_source(self, s: CloningState) -> Iterator[Next]:
        if s.applied < LAST:
            following = Csn(s.applied + 1)
            yield ("apply",), s._replace(applied=following, catalog=self.log.applied(s.catalog, following))
        if (published := self._publishes(s, SOURCE, Progress(s.applied, s.applied), 0)) is not None:
            yield ("publish",), published
        if s.raising is not None or self._bound(s, tree.HORIZON) < s.applied:
            yield ("raise",), self._goes_on(s, "raise", s.raising or ())
        if s.cutting is not None or self._bound(s, tree.TAIL) < s.applied:
            yield ("cut",), self._goes_on(s, "cut", s.cutting or ())
        if (noted := self.log.noted(s.catalog, self._bound(s, tree.HORIZON))) != s.catalog:
            yield ("note",), s._replace(catalog=noted)
        for part in self.log.removed(s.catalog):
            yield ("delete", part), s._replace(catalog=self.log.deleted(s.catalog, part))
        forgotten = self.log.forgotten(s.catalog)
        if forgotten != s.catalog:
            yield ("forget",), s._replace(catalog=forgotten)
        if s.lock and self._lock_may_go(s):
            yield ("sweep",), s._replace(lock=False)

    def _of_joiner(self, s: CloningState, one: CloningReplica) -> Iterator[Next]:
        if one.phase == DOWN:
            yield ("start",), self._starts(s, one)
        elif one.phase == REGISTERED:
            if one.manifest is None:
                yield ("send",), s.but(manifest=self.sent(s))
            else:
                yield ("install",), self._installs(s, one, one.manifest)
        else:
            yield from self._of_follower(s, one)

    def _of_follower(self, s: CloningState, one: CloningReplica) -> Iterator[Next]:
        following = Csn(one.applied + 1)
        if one.applied < LAST:
            added = self.log.added(following)
            if following not in {entry.csn for entry in self.ensemble.log(s.tree)} and following > 1:
                yield (
                    ("follow",),
                    Broken("I14 LIVE", f"the clone at CSN {one.applied} is too late when it ends"),
                )
            elif added <= self.log.held(s.catalog) | self.log.held(one.catalog):
                staged = self.log.staged(one.catalog, added)
                yield ("follow",), s.but(applied=following, catalog=self.log.applied(staged, following))
        for part in sorted(self._lacks(one) & self.log.held(s.catalog)):
            yield ("fetch", part), s.but(catalog=self.log.staged(one.catalog, frozenset({part})))
        oldest = min(one.applied, one.base) if one.base else one.applied
        told = Progress(one.applied, oldest)
        if (published := self._publishes(s, JOINER, told, one.fence)) is not None:
            yield ("tell",), published
        if one.phase == FOLLOWING and one.applied >= self.serves_from(s) and not self._lacks(one):
            yield ("serve",), s.but(phase=SERVES, base=CSN_NONE)

    def serves_from(self, s: CloningState) -> Csn:
        """The end of the log behind the registration; a planted bug may serve before."""
        return LAST

    # ------------------------------------------------------------------------------------------- the joiner

    def _starts(self, s: CloningState, one: CloningReplica) -> CloningState | Broken:
        store = AtOnce(self.ensemble, s.tree)
        known = KnownState(last_csn=one.applied, disk=one.disk)
        begun = open_session(
            store,  # type: ignore[arg-type]
            replica=JOINER,
            member=MemberState(),
            disk=one.disk,
            known=known,
            nonce=lambda: f"b{one.boot}",
            suffix=lambda: f"d{one.boot}",
            replace_disk=True,
        )
        turn = self._replays.run(begun)
        if not isinstance(turn, Returned):
            return Broken("I15 FAILSTOP", f"the start ends with {turn}")
        own: OwnSession = turn.value
        after = s._replace(tree=store.state)
        phase = REGISTERED if own.clone else FOLLOWING
        return after.but(phase=phase, boot=one.boot + 1, fence=own.fence, manifest=None)

    def sent(self, s: CloningState) -> Manifest:
        """Return the catalog of the source, what is undecided as well, and its CSN."""
        return Manifest(s.catalog, s.applied)

    def position(self, s: CloningState, sent: Manifest) -> Csn:
        """The CSN of a clone: that of its rows; a planted bug may take another."""
        return sent.csn

    def _installs(self, s: CloningState, one: CloningReplica, sent: Manifest) -> CloningState:
        csn = self.position(s, sent)
        if not is_usable(csn, self._bound(s, tree.TAIL), self._bound(s, tree.HORIZON)):
            return s.but(manifest=None)
        found = self.ensemble.read(s.tree, tree.session(JOINER))
        assert isinstance(found, Ok)
        disk = codec.decode_session(found.value.data).disk
        installed = self.log.catalogs.after(
            one.catalog, ("install", sent.catalog, csn), lambda db: self._install(db, sent.catalog, csn)
        )
        return s.but(phase=DOWN, applied=csn, catalog=installed, disk=disk, base=csn, manifest=None)

    def _install(self, db: sqlite3.Connection, sent: int, csn: Csn) -> None:
        """Let the product write a manifest, and put it in place of a catalog."""
        with self.log.catalogs.folder(sent) as folder:
            path = folder / "manifest"
            manifests.write_manifest(folder, path)
            db.execute("BEGIN")
            manifests.install(db, path, disk="d", files=(), found=())
            jobs.set_meta(db, snapshot_csn=csn)
            db.execute("COMMIT")

    def _lacks(self, one: CloningReplica) -> frozenset[PartId]:
        """The visible parts whose bytes are not here."""
        seen = self.log.shown(one.catalog, one.applied).parts
        return frozenset(PartId(part) for _, part in seen) - self.log.held(one.catalog)

    # --------------------------------------------------------------------------------------- ZooKeeper

    def _bound(self, s: CloningState, path: str) -> Csn:
        found = self.ensemble.read(s.tree, path)
        assert isinstance(found, Ok)
        return codec.decode_csn(found.value.data)

    def _publishes(self, s: CloningState, replica: Any, told: Progress, fence: int) -> CloningState | None:
        data = codec.encode_progress(told)
        found = self.ensemble.read(s.tree, tree.progress(replica))
        assert isinstance(found, Ok)
        if found.value.data == data:
            return None
        ops = (Check(tree.session(replica), fence), SetData(tree.progress(replica), data))
        _, after = self.ensemble.apply(s.tree, self.ensemble.multis.number(ops))
        return s._replace(tree=after)

    def _lock_may_go(self, s: CloningState) -> bool:
        store: Any = AtOnce(self.ensemble, s.tree)
        turn = self._replays.run(locks_needed_from(store, self._bound(s, tree.TAIL)))
        assert isinstance(turn, Returned)
        return bool(turn.value > REMOVAL)

    def _goes_on(self, s: CloningState, kind: str, script: tuple[Heard, ...]) -> CloningState | Broken:
        """One turn of a move of horizon or tail: its reads up to the next multi, or the multi."""
        turn = self._turn(kind, script)
        if isinstance(turn, AsksMulti):
            result, after = self.ensemble.apply(s.tree, self.ensemble.multis.number(turn.ops))
            s, script = s._replace(tree=after), (*script, Heard(result))
        else:
            while isinstance(turn, AsksRead):
                script = (*script, hear(self.ensemble, s.tree, turn.path))
                turn = self._turn(kind, script)
        turn = self._turn(kind, script)
        if isinstance(turn, RunRaised):
            return Broken("I15 FAILSTOP", f"a move ends with {turn.error!r}")
        left = None if isinstance(turn, Returned) else script
        return s._replace(raising=left) if kind == "raise" else s._replace(cutting=left)

    def _turn(self, kind: str, script: tuple[Heard, ...]) -> Turn:
        key = (kind, script)
        if key not in self._turns:
            store: Any = AnsweredStore(self.ensemble, script)
            log: Any = FencedLog(store, SOURCE, 0)
            mover = HorizonMover(
                replica=SOURCE, settings=None, store=store, members=dict, tags=dict, retained=lambda _: LAST,  # type: ignore[arg-type]
                log=log, clock=lambda: 0.0, records_kept=lambda: 1,
            )  # fmt: skip
            work = (
                mover._raise(Bound(LAST, "retention"))
                if kind == "raise"
                else _cut(store, log.fenced, self._keep)
            )
            self._turns[key] = self._replays.run(work)
        return self._turns[key]

    # ------------------------------------------------------------------------------------------- promises

    def check(self, state: State) -> Broken | None:
        """The replica shows what the log says, and removes nothing that is removed."""
        assert isinstance(state, CloningState)
        one = state.joiner
        if one.phase in {FOLLOWING, SERVES} and (broken := self._differs(one)) is not None:
            return broken
        if one.phase == SERVES:
            if self._lacks(one):
                return Broken("I9 HONEST", f"{JOINER} serves CSN {one.applied} without all of its parts")
            seen = self.log.shown(one.catalog, one.applied)
            if not state.lock and (FIRST_TABLE, "A") in seen.parts:
                return Broken("I7 NOCONFLICT", f"{JOINER} may remove A once more: it sees no lock")
        return None

    def _differs(self, one: CloningReplica) -> Broken | None:
        """Return how the replica shows something else than the log: now, or at an earlier CSN."""
        seen, right = self.log.shown(one.catalog, one.applied), self.log.right(one.applied)
        if seen != right:
            return Broken("I10 AGREE", f"{JOINER} shows {seen} at CSN {one.applied}, the log has {right}")
        return self.log.dishonest(one.catalog, one.applied, JOINER)

    def unsettled(self, state: State) -> Broken | None:
        """In the end the replica serves, and what was removed is gone, with its lock."""
        assert isinstance(state, CloningState)
        if state.joiner.phase != SERVES and not self._away:
            return Broken("I14 LIVE", f"{JOINER} stays at CSN {state.joiner.applied} and never serves")
        if state.lock:
            return Broken("I14 LIVE", "the lock of a removal that all members have applied stays")
        return Broken("I13 NOLEAK", "A is never deleted") if "A" in self.log.held(state.catalog) else None

    def describe(self, state: State, move: Move) -> str:
        """A move in words."""
        return _WORDS[str(move[0])].format(part=move[1] if len(move) > 1 else "")


async def _cut(store: Any, fenced: Any, keep: int) -> None:
    """Move the tail, then delete what is below."""
    moved = await tail.move_tail(store, fenced, keep)
    if moved is not None and moved > CSN_NONE:
        await tail.delete_below(store, fenced, moved)


_WORDS: Final = {
    "apply": "the source applies the next record",
    "publish": "the source publishes its progress",
    "raise": "somebody goes on raising the horizon",
    "cut": "somebody goes on moving the tail",
    "note": "the source notes the horizon",
    "delete": "the source deletes {part}",
    "forget": "the source forgets the definition of before the drop",
    "sweep": "the lock of the removal is deleted",
    "start": "the replica starts",
    "send": "the source sends its catalog",
    "install": "the catalog is replaced",
    "follow": "the replica applies the next record",
    "fetch": "the replica fetches {part}",
    "tell": "the replica publishes its progress",
    "serve": "the replica serves",
    "crash": "the replica dies",
}
