"""The fetch of parts that this replica lacks, from any replica that has them (rule apply).

A part counts as fetched when its length and XXH3-128 are right and file and row are durable here. A failure
before that is followed by another attempt, with the next holder or later, for as long as the part is wanted.
A large part is fetched in ranges into its own file. A broken transfer leaves that file in ``tmp/``, and the
fetch continues from there with any holder. Small parts are fetched whole, many in one request, and share
packs. A holder that sent wrong bytes is tried last. One that sends nothing is left soon for the next one,
since commits wait for copies. If another part has the same bytes here, a part takes those; of several such
parts that are missing, one is fetched (rule shared-bytes).

What a clone lacks has places of its own: thousands of large parts wait for these, and the records that follow
meanwhile would wait behind them until the replica is struck.

Failure model: holders may be dead, frozen, lagging or send wrong bytes; the own disk may be full.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

import msgspec
import structlog

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import PartId, ReplicaId, Tid
from tidelock.errors import CorruptError, DiskFullError, TidelockError, UnavailableError
from tidelock.replication.backoff import wait_s
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.model import Peer, Wanted
from tidelock.replication.core.room import DiskUse
from tidelock.replication.fetch_places import FetchPlaces, Place
from tidelock.replication.part_groups import PartGroups
from tidelock.replication.partfs import PartFs, PartSink
from tidelock.replication.peers import PeerClient
from tidelock.replication.ports import PartStore

P = ParamSpec("P")
T = TypeVar("T")

FETCH = faults.step("replication.fetch")
#: Bytes of small parts of one lane that are under way or in memory at once.
SMALL_BYTES_MAX = 64 << 20
_log = structlog.get_logger("fetch")


class _FetchLane(msgspec.Struct, frozen=True):
    """The places for small and for large parts. ``groups`` reads small ones."""

    small: FetchPlaces
    large: FetchPlaces
    groups: PartGroups


@dataclass(slots=True, eq=False)
class _Fetch:
    """One part that is being fetched.

    ``sink`` keeps the received bytes of a large part, ``sources`` the replicas that sent them, ``undo``
    the path of its file while no row names that. ``landing`` is set while the part is made durable, which
    is not interrupted; ``stopped`` says that the part is not wanted any more, ``no_room`` that the last
    attempt ended since the own disk is full. ``lane`` has the places that it waits for, ``place`` is the
    one that it has. ``turn`` is the lock of all parts with the same bytes: the first one is fetched, and
    the others take its bytes.
    """

    wanted: Wanted
    lane: _FetchLane
    turn: asyncio.Lock
    place: Place = field(init=False)
    task: asyncio.Task[None] | None = None
    sink: PartSink | None = None
    undo: str | None = None
    sources: set[ReplicaId] = field(default_factory=set)
    wrong: dict[ReplicaId, int] = field(default_factory=dict)
    landing: bool = False
    stopped: bool = False
    trouble: str = "not asked for yet"
    no_room: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Fetcher:
    """The component that fetches wanted parts.

    Attributes:
        client: HTTP to the peers.
        files: The files for large parts.
        store: Makes parts known and durable.
        replica: This replica.
        on_held: Called in the event loop when a part is durable here.
        on_wrong_bytes: Called when a replica has sent bytes that are not the bytes of the part.
        range_bytes: Bytes of one request for a large part.
        small_bytes_max: Parts up to this size share requests, and are stored in packs.
        concurrency: Large parts fetched at once; as many again of those that a clone lacks. Transactions that
            are not committed take turns.
        small_concurrency: The same for small parts, of :data:`SMALL_BYTES_MAX` bytes at most. They share
            requests, and wait for the disk together: a replica that was away stores many with one fsync. With
            few of them it would never catch up with busy peers.
        retry_wait_max_s: Longest pause before all holders are asked again.
        patience_s: How long a holder may send nothing before the next one is asked. The time is doubled at
            each silence of a replica, so that a slow one that alone has a part gets enough of it.
        patience_max_s: The time is not doubled beyond this.
        grace_s: How long a small part of a committed transaction is left to a push, which is mostly under way
            already: an immediate fetch would transfer it twice.
        early_max: Most parts of undecided transactions that are wanted at once; more are not accepted.
    """

    client: PeerClient
    files: PartFs
    store: PartStore
    replica: ReplicaId
    on_held: Callable[[PartId], None]
    on_wrong_bytes: Callable[[ReplicaId, PartId], None]
    range_bytes: int
    small_bytes_max: int
    concurrency: int
    small_concurrency: int
    retry_wait_max_s: float
    patience_s: float
    patience_max_s: float
    grace_s: float
    early_max: int
    _log_lane: _FetchLane = field(init=False)
    _clone_lane: _FetchLane = field(init=False)
    _peers: dict[ReplicaId, Peer] = field(default_factory=dict, init=False)
    #: By replica that did not answer the last request: how long it may be silent in the next one.
    _silent: dict[ReplicaId, float] = field(default_factory=dict, init=False)
    _running: dict[PartId, _Fetch] = field(default_factory=dict, init=False)
    #: By the origin of parts: the lock that they share, while one of them is wanted.
    _turns: WeakValueDictionary[PartId, asyncio.Lock] = field(default_factory=WeakValueDictionary, init=False)
    _early: int = field(default=0, init=False)
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._log_lane, self._clone_lane = self._lane(), self._lane()

    def _lane(self) -> _FetchLane:
        return _FetchLane(
            FetchPlaces(self.small_concurrency, SMALL_BYTES_MAX),
            FetchPlaces(self.concurrency, sys.maxsize),  # these are not in memory
            PartGroups(self.client),
        )

    def members(self, peers: Iterable[Peer]) -> None:
        """Process the present member list. A struck replica may still send parts, which are verified."""
        self._peers = {peer.replica: peer for peer in peers if peer.replica != self.replica}

    def want(self, wanted: Wanted, *, clone: bool = False) -> None:
        """Fetch a part unless that is under way. The fetch ends when the part is here or no longer wanted.

        Args:
            wanted: The part.
            clone: The part belongs to a clone: it takes no place from the parts of new transactions.
        """
        running = self._running.get(wanted.meta.part)
        if running is not None:
            if wanted.csn is not None and running.wanted.csn is None:
                self._early -= 1
                running.wanted = wanted
            return
        if self._closed or (wanted.csn is None and self._early >= self.early_max):
            return
        self._early += wanted.csn is None
        turn = self._turns.setdefault(wanted.meta.origin, asyncio.Lock())
        item = _Fetch(wanted, self._clone_lane if clone else self._log_lane, turn)
        self._running[wanted.meta.part] = item
        item.task = asyncio.create_task(self._run(item), name=f"fetch {wanted.meta.part}")

    def arrived(self, part: PartId) -> None:
        """Note that the part arrived by another route: a push brought it."""
        if (item := self._running.get(part)) is not None:
            self._stop(item)

    def cancel(self, tids: Collection[str]) -> None:
        """Stop fetching for these transactions, which are rolled back, except for parts of committed ones."""
        gone = frozenset(tids)
        for item in list(self._running.values()):
            if item.wanted.csn is None and str(item.wanted.tid) in gone:
                self._stop(item)

    def drop(self, parts: Iterable[PartId]) -> None:
        """Stop fetching parts for an undecided transaction that does not need them any more."""
        for part in parts:
            item = self._running.get(part)
            if item is not None and item.wanted.csn is None:
                self._stop(item)

    def early(self) -> frozenset[str]:
        """Return the undecided transactions whose parts are being fetched."""
        return frozenset(str(item.wanted.tid) for item in self._running.values() if item.wanted.csn is None)

    def is_wanted(self, part: PartId) -> bool:
        """Return whether a part is being fetched."""
        return part in self._running

    def coming_bytes(self) -> int:
        """Return the bytes that are still to come of parts of undecided transactions."""
        return sum(
            item.wanted.meta.length - (0 if item.sink is None or item.sink.closed else item.sink.length)
            for item in self._running.values()
            if item.wanted.csn is None
        )

    def came(self, parts: Iterable[PartId]) -> int:
        """Return how many bytes have arrived of large parts that are still being fetched."""
        items = (self._running.get(part) for part in parts)
        return sum(item.sink.length for item in items if item is not None and item.sink is not None)

    def trouble(self, part: PartId) -> str | None:
        """Return why a wanted part has not arrived yet, or None if it is not wanted."""
        item = self._running.get(part)
        return None if item is None else item.trouble

    def no_room(self, part: PartId) -> bool:
        """Return whether a wanted part waits for room on the own disk."""
        item = self._running.get(part)
        return item is not None and item.no_room

    async def close(self) -> None:
        """Stop fetching; a part that is being made durable is finished first."""
        self._closed = True
        tasks = [item.task for item in self._running.values() if item.task is not None]
        for item in list(self._running.values()):
            self._stop(item)
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in (self._log_lane, self._clone_lane):
            await lane.groups.close()

    def _stop(self, item: _Fetch) -> None:
        self._forget(item)
        item.stopped = True
        if item.task is not None and not item.landing:
            item.task.cancel()

    def _forget(self, item: _Fetch) -> None:
        if self._running.get(item.wanted.meta.part) is item:
            del self._running[item.wanted.meta.part]
            self._early -= item.wanted.csn is None

    # -- one part ---------------------------------------------------------------------------------------

    async def _run(self, item: _Fetch) -> None:
        meta = item.wanted.meta
        small = meta.length <= self.small_bytes_max
        failures = 0
        try:
            done = await self._share(item)
            if small and item.wanted.csn is not None and not done:
                await asyncio.sleep(self.grace_s)
            while not done:
                places = item.lane.small if small else item.lane.large
                async with places.taken(meta.length, _owner(item)) as item.place, item.turn:
                    done = await self._share(item) or await self._ask_all(item, small=small)
                if done or item.stopped or await self._is_collected(item):
                    break
                failures += 1
                if failures == 1:
                    _log.info("part_not_found", part=meta.part, tid=str(item.wanted.tid), reason=item.trouble)
                await asyncio.sleep(wait_s(failures, self.retry_wait_max_s))
        finally:
            self._forget(item)
            await self._undo(item)
        if not item.stopped:
            self.on_held(meta.part)

    async def _share(self, item: _Fetch) -> bool:
        """Take the bytes of another part that is here; return whether there is one."""
        item.landing = True
        try:
            return await self.store.share(item.wanted)
        except TidelockError as error:  # the catalog takes nothing now; the next attempt asks again
            item.trouble = error.message
            return False
        finally:
            item.landing = False

    async def _is_collected(self, item: _Fetch) -> bool:
        """Return whether a part of a committed transaction has no row any more; then its fetch has ended.

        No replica may hold it: it was removed, and the horizon has passed the removal.
        """
        if item.wanted.csn is None or await self.store.lacking(item.wanted.meta.part):
            return False
        item.stopped = not await self.store.held((item.wanted.meta.part,))
        return True

    async def _undo(self, item: _Fetch) -> None:
        """Discard the received bytes of a large part that will not be recorded.

        If the part is fetched again meanwhile, file and undo row belong to the new fetch.
        """
        if item.sink is not None:
            await _in_thread(item.sink.abandon)
        if item.undo is not None and item.wanted.meta.part not in self._running:
            with contextlib.suppress(TidelockError):  # else the next start of this replica does it
                await _in_thread(self.files.delete, [item.undo])
                if item.wanted.meta.part not in self._running:
                    await self.store.forget_undo(item.undo)

    async def _ask_all(self, item: _Fetch, *, small: bool) -> bool:
        """Ask each holder once; return True as soon as the part is durable here."""
        item.trouble = "no other replica is known to hold it"
        for peer in self._holders(item):
            silence_s = self._silent.get(peer.replica, self.patience_s)
            try:
                await FETCH.before()
                if small:
                    done = await self._fetch_small(item, peer, silence_s)
                else:
                    done = await self._fetch_large(item, peer, silence_s)
                self._silent.pop(peer.replica, None)
            except DiskFullError as error:
                item.trouble, item.no_room = error.message, True
                return False
            except CorruptError as error:
                self._blame(item, {peer.replica}, error.message)
            except Exception as error:
                item.trouble = f"{peer.replica}: {error}"
                if isinstance(error, UnavailableError):
                    self._silent[peer.replica] = min(2 * silence_s, self.patience_max_s)
                elif not isinstance(error, TidelockError):
                    _log.warning(
                        "fetch_failed", part=item.wanted.meta.part, holder=peer.replica, exc_info=True
                    )
            else:
                if done:
                    return True
            finally:
                item.landing = False
        item.no_room = False
        return False

    def _holders(self, item: _Fetch) -> list[Peer]:
        """Return the replicas to ask: the holders at the commit, then all others, best first."""
        known = dict.fromkeys((*item.wanted.holders, *self._peers))
        peers = [self._peers[replica] for replica in known if replica in self._peers]
        return sorted(
            peers,
            key=lambda peer: (item.wrong.get(peer.replica, 0), peer.replica in self._silent, not peer.alive),
        )

    async def _fetch_small(self, item: _Fetch, peer: Peer, silence_s: float) -> bool:
        meta = item.wanted.meta
        self.files.room.admit(_use(item), meta.length)
        data = await item.lane.groups.read(peer.data, meta, silence_s=silence_s)
        if not self._right(item, {peer.replica}, checksum(data)):
            return False
        await FETCH.after()
        item.landing = True
        await self.store.store(meta, item.wanted.tid, data)
        return True

    async def _fetch_large(self, item: _Fetch, peer: Peer, silence_s: float) -> bool:
        meta = item.wanted.meta
        sink = item.sink
        if sink is not None and item.wrong and (others := item.sources - {peer.replica}):
            # Wrong bytes were sent: from now on the whole part comes from one holder, so that it is
            # identified.
            if item.wrong.get(peer.replica, 0) > max(item.wrong.get(other, 0) for other in others):
                return False  # the transfer that a better holder has begun is not given up for this one
            await _in_thread(sink.abandon)
        if sink is None or sink.closed:
            if await self.store.held((meta.part,)):
                # The fetch before this one has recorded it, after it was found missing: not ours to undo.
                return True
            item.undo = self.files.part_path(meta.part, meta.kind)
            await self.store.note_undo(item.undo)
            sink = await _in_thread(self._begin, item)
        while sink.length < meta.length:
            if sink.length:  # a part may have the bytes of hours
                await item.lane.large.pass_on(item.place, _owner(item))
            end = min(sink.length + self.range_bytes, meta.length)
            answer = self.client.read_part(peer.data, meta, sink.length, end, silence_s=silence_s)
            async with aclosing(answer) as chunks:
                async for chunk in chunks:
                    item.sources.add(peer.replica)
                    sink.use = _use(item)  # its transaction may be committed meanwhile
                    await _in_thread(sink.write, chunk)
        if not self._right(item, item.sources, sink.checksum):
            await _in_thread(sink.abandon)
            return False
        await FETCH.after()
        item.landing = True
        location = await _in_thread(sink.finish)
        if not item.stopped:
            await self.store.record(meta, item.wanted.tid, location)
            item.undo = None
        return True

    def _begin(self, item: _Fetch) -> PartSink:
        item.sink = self.files.begin(item.wanted.meta.part, item.wanted.meta.kind, use=_use(item))
        item.sources = set()
        return item.sink

    def _right(self, item: _Fetch, sources: set[ReplicaId], found: str) -> bool:
        """Compare the checksum of the received bytes; senders of wrong ones are asked last from now on."""
        meta = item.wanted.meta
        if found == meta.checksum:
            return True
        self._blame(item, sources, f"{meta.part} came with checksum {found}, expected {meta.checksum}")
        return False

    def _blame(self, item: _Fetch, sources: set[ReplicaId], reason: str) -> None:
        item.trouble = f"{', '.join(sorted(sources))}: {reason}"
        if not sources <= item.wrong.keys():
            _log.error("wrong_bytes", part=item.wanted.meta.part, holders=sorted(sources), reason=reason)
        for replica in sources:
            item.wrong[replica] = item.wrong.get(replica, 0) + 1
        if len(sources) == 1:  # with several sources only one may be wrong
            self.on_wrong_bytes(next(iter(sources)), item.wanted.meta.part)


def _owner(item: _Fetch) -> Tid | None:
    """Return with which parts one waits for its turn: those of its transaction, or of all committed ones.

    The log applies the committed ones in their order.
    """
    return item.wanted.tid if item.wanted.csn is None else None


def _use(item: _Fetch) -> DiskUse:
    """Return the mark of the disk that holds for a part now: it is a copy until its transaction commits."""
    return DiskUse.COPY if item.wanted.csn is None else DiskUse.COMMITTED


async def _in_thread(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call in a thread. When cancelled, wait for its end first: a file has one user."""
    running = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
