"""The product's removal locks for the explorers: each course of a take, a release, a sweep is run once.

All of :class:`~tidelock.replication.locks.removal_locks.Locks` runs as it is; what it is given is modelled
here: the fence, which is raised after every Unknown, the outcomes of transactions, and who is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

from tests.sim.explore.answers import AnsweredStore, Heard
from tests.sim.explore.ensemble import Ensemble, Numbered, RecordFacts
from tests.sim.explore.replay import Replays, RunRaised
from tests.support.clusters.resolving import GivenLocal, resolver_over
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.fence import seize
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import SessionState
from tidelock.csnlog.core.results import (
    Aborted,
    Committed,
    LogReading,
    Ok,
    Outcome,
    Reason,
    Refused,
    Running,
    Unknown,
)
from tidelock.csnlog.core.store import Check, Node, Op, SetData, Written
from tidelock.errors import FencedError
from tidelock.replica_agent.transactions.outcomes.rules import LOCK
from tidelock.replication.core.lock_book import Book
from tidelock.replication.core.lock_rules import LockAsk, LockLimits, Wide
from tidelock.replication.locks import sweeper
from tidelock.replication.locks.removal_locks import Locks

#: A sweeper logs the holder that it has evicted; that is no news here.
_SILENT = mock.Mock()
TABLE = TableId("d.orders")
LIMITS = LockLimits(
    locks_max=100,
    table_locks_max=100,
    multi_bytes_max=1 << 19,
    compaction_lock_wait_s=0.0,
    connect_wait_s=0.0,
    scan_interval_s=0.0,
)


@dataclass(frozen=True, slots=True)
class Asks:
    """The request that a run waits for: a multi, or a read of ``about`` by its kind."""

    kind: str
    about: Any


@dataclass(frozen=True, slots=True)
class LockRunEnded:
    """A run is over: what it raised, what it holds in mind now, its fence, and whether that was foreign."""

    error: Exception | None
    mind: int
    fence: int
    fenced: bool


class Mind(NamedTuple):
    """The memory of a life between two runs: its book, and whether former lives were checked."""

    book: Book
    adopted: bool


class LockRun(NamedTuple):
    """A call of a method that is under way.

    Attributes:
        kind: ``take``, ``release`` or ``sweep``.
        tid: Of the transaction, None for a sweep.
        parts: What to lock: parts with their partitions,
        wide: and more than parts.
        at: The CSN that the statement reads at, or the tail.
        silent: Whom a sweep takes for silent.
    """

    kind: str
    tid: Tid | None = None
    parts: tuple[tuple[PartId, str], ...] = ()
    wide: tuple[Wide, ...] = ()
    at: Csn = Csn(0)
    silent: frozenset[ReplicaId] = frozenset()


class _AsksError(BaseException):
    """Ends a run at what it asks for next; the product must not catch it."""

    def __init__(self, asks: Asks) -> None:
        super().__init__()
        self.asks = asks


class _Store(AnsweredStore):
    """The store of one run, which also answers what is no matter of ZooKeeper."""

    def _next(self, asks: Any) -> Any:
        if not self._script:
            raise _AsksError(asks)
        return self._ensemble.results.values[self._script.pop(0).result]

    async def multi(self, ops: tuple[Op, ...], kind: str = "multi") -> Any:
        """The next answer."""
        return self._next(Asks(kind, ops))

    async def get(self, path: str, *, watch: object = None) -> Any:
        """The next answer."""
        return self._next(Asks("get", path))

    async def exists(self, path: str, *, watch: object = None) -> Any:
        """The next answer."""
        return self._next(Asks("exists", path))

    async def children(self, path: str, *, watch: object = None) -> Any:
        """The next answer."""
        return self._next(Asks("children", path))

    async def ask(self, kind: str, about: object) -> Any:
        """The next answer."""
        return self._next(Asks(kind, about))


class LockPorts:
    """The ports of one run of a replica's locks."""

    def __init__(self, store: _Store, replica: ReplicaId, boot: int, fence: int) -> None:
        self.store, self._replica, self._boot, self.fence = store, replica, boot, fence
        self._path = tree.session(replica)
        #: Another has raised the fence, which the log of the replica finds out.
        self.lost = False

    async def fenced(self, ops: tuple[Op, ...]) -> Ok[tuple[object, ...]] | Refused | Unknown:
        """As ``CsnLog.fenced``: behind an Unknown the fence has been raised."""
        match await self.store.multi((Check(self._path, self.fence), *ops), "multi" if ops else "barrier"):
            case Ok(value=(_, *values)):
                return Ok(tuple(values))
            case Refused(reason=Reason.BAD_VERSION, index=0):
                raise self._foreign()
            case Refused(reason, index):
                return Refused(reason, index - 1)
        match await self.store.multi((raise_op(self._replica, self._boot, self.fence),), "barrier"):
            case Ok(value=(Written(version=version),)):
                self.fence = version
                return Unknown("lost")
        raise self._foreign()

    def _foreign(self) -> FencedError:
        self.lost = True
        return FencedError("fenced")

    async def outcome(self, tid: Tid) -> Outcome:
        """The product's resolver; the own transactions are modelled, and nobody's home is asked."""
        own: Outcome | None = None
        if tid.home == self._replica and tid.boot == self._boot:
            own = await self.store.ask("own", tid)
        local = GivenLocal(
            replica=self._replica,
            boot=self._boot,
            known=lambda _: own if isinstance(own, Committed) else None,
            registered=lambda _: own if isinstance(own, Aborted | Running) else None,
        )
        return await resolver_over(self, local).outcome(tid, LOCK)

    async def find(self, tid: Tid, *, newest: bool = False) -> LogReading:
        """As ``CsnLog.find``: the session znode of the home, then the log."""
        assert not newest, "no tid is of a boot that never was"
        node: Ok[Node] = await self.store.get(tree.session(tid.home))
        log: tuple[RecordFacts, ...] = await self.store.ask("log", None)
        commits = [Committed(entry.csn) for entry in log if str(tid) in entry.tids]
        boot = codec.decode_session(node.value.data).boot
        return LogReading(boot, commits[0] if commits else None)

    async def fence_home(self, home: ReplicaId, _boot: int) -> int | None:
        """Fence a replica that is silent; returns the version that this has written."""
        if not await self.store.ask("silent", home):
            return None
        node: Ok[Node] = await self.store.get(tree.session(home))
        state = codec.decode_session(node.value.data)
        change = seize(tree.session(home), node.value, state.boot, f"{self._replica}.{node.value.version}")
        assert change is not None
        match await self.fenced((change,)):
            case Ok(value=(Written(version=version),)):
                return version
        return None


def raise_op(replica: ReplicaId, boot: int, fence: int) -> SetData:
    """A replica's raise of its own fence."""
    state = SessionState(boot, f"disk-{replica}", f"{replica}.{fence}", "serving")
    return SetData(tree.session(replica), codec.encode_session(state), fence)


async def _no_pause(_: float) -> None:
    """Time is not modelled."""


class Lockers:
    """Runs the locks of replicas; what they remember is known by numbers.

    Args:
        ensemble: The states of ZooKeeper.
        replays: Runs coroutines.
    """

    def __init__(self, ensemble: Ensemble, replays: Replays) -> None:
        self._ensemble, self._replays = ensemble, replays
        self._minds: list[Mind] = []
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[Hashable, Asks | LockRunEnded] = {}
        self.answers: Numbered[Any] = ensemble.results
        self.empty = self.number(Mind(Book(), adopted=False))

    def number(self, mind: Mind) -> int:
        """The number of what a life remembers."""
        number = self._numbers.setdefault((mind.book.state(), mind.adopted), len(self._minds))
        if number == len(self._minds):
            self._minds.append(mind)
        return number

    def mind(self, number: int) -> Mind:
        """Return the memory of a life; the caller does not change it."""
        return self._minds[number]

    def changed(self, number: int, change: Callable[[Book], object]) -> int:
        """The number of a mind whose book was changed."""
        book = self._minds[number].book.copy()
        change(book)
        return self.number(Mind(book, self._minds[number].adopted))

    def turn(
        self, replica: ReplicaId, boot: int, fence: int, mind: int, run: LockRun, script: tuple[Heard, ...]
    ) -> Asks | LockRunEnded:
        """How far a run gets that has heard these answers."""
        key = (replica, boot, fence, mind, run, script)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._turn(replica, boot, fence, mind, run, script)
        return known

    def _turn(
        self, replica: ReplicaId, boot: int, fence: int, mind: int, run: LockRun, script: tuple[Heard, ...]
    ) -> Asks | LockRunEnded:
        store = _Store(self._ensemble, script)
        around = LockPorts(store, replica, boot, fence)
        book = self._minds[mind].book.copy()
        locks = Locks(
            replica=replica,
            boot=boot,
            store=store,
            fenced=around.fenced,
            outcome=around.outcome,
            fence_home=around.fence_home,
            silent=lambda: run.silent,
            clock=lambda: 0.0,
            limits=LIMITS,
            pause=_no_pause,
            book=book,
        )
        locks._sweeper._adopted = self._minds[mind].adopted
        try:
            with mock.patch.object(sweeper, "_log", _SILENT):
                turn = self._replays.run(_call(locks, run))
        except _AsksError as asks:
            return asks.asks
        error = turn.error if isinstance(turn, RunRaised) else None
        return LockRunEnded(
            error, self.number(Mind(book, locks._sweeper._adopted)), around.fence, around.lost
        )


async def _call(locks: Locks, run: LockRun) -> None:
    match run:
        case LockRun("take", Tid() as tid, parts, wide, at):
            await locks.take(tid, LockAsk(TABLE, dict(parts), wide), at=at)
        case LockRun("release", Tid() as tid):
            await locks.release(tid)
        case LockRun("sweep", at=tail):
            await locks.sweep(tail)
