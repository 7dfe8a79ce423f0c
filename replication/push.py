"""The push of sealed transactions to the peers: one request in flight per peer, each a natural batch.

Transactions that are sealed while a request is under way collect for the next one. A transaction is pushed
until the peer reports that it holds it, until it is rolled back, or until it is decided and the peer does not
keep up: then the peer gets it by the log. So a dead peer costs one small retry at a time and keeps nothing in
memory. A peer that is merely slower than the others still gets decided transactions from here, up to a bound,
which is cheaper for both sides than fetching each part.

Answers go to ``on_held`` unchanged. :class:`tidelock.replication.core.copies.Copies` decides whether they
count.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import structlog

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import PartId, ReplicaId, Tid
from tidelock.errors import TidelockError, TooLargeError, UnavailableError
from tidelock.replication.backoff import wait_s
from tidelock.replication.core import wire
from tidelock.replication.core.model import Held, PartMeta, Peer, SealedTid
from tidelock.replication.peers import PeerClient

PUSH = faults.step("replication.push")
_log = structlog.get_logger("push")

#: The least size at which a waiting transaction counts, for its metadata.
_TID_BYTES = 1024


@dataclass(slots=True, eq=False)
class _Open:
    """A transaction that a peer still lacks."""

    sealed: SealedTid
    inline: dict[PartId, bytes]
    inline_bytes: int
    decided: bool = False
    acked: dict[ReplicaId, str] = field(default_factory=dict)

    @property
    def cost_bytes(self) -> int:
        return self.inline_bytes + _TID_BYTES


@dataclass(slots=True)
class _Later:
    """A transaction that the peer did not accept yet: when to ask again, with the bytes or without."""

    due: float
    attempts: int
    by_reference: bool


class _Hint(msgspec.Struct, frozen=True):
    """Parts that a replica already has."""

    tid: Tid
    holder: ReplicaId
    parts: Sequence[PartMeta]


@dataclass(slots=True, eq=False)
class _Lane:
    """The transfers to one peer. Of too many hints the oldest is dropped, as a hint may be."""

    peer: Peer
    forgotten: deque[Tid]
    dropped: deque[PartId]
    hints: deque[_Hint]
    todo: dict[str, _Open] = field(default_factory=dict)
    later: dict[str, _Later] = field(default_factory=dict)
    failures: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Pusher:
    """The component that sends this home's sealed transactions to the peers.

    Attributes:
        client: HTTP to the peers.
        home: This replica.
        boot: Start number of this agent.
        cluster_id: The cluster, which a peer compares with its own.
        on_held: Called in the event loop with every answer.
        push_bytes_max: Inline bytes of one request; also the memory that decided transactions may use.
        push_tids_max: Transactions of one request.
        push_timeout_s: A request without an answer after this time is sent again.
        retry_wait_max_s: Longest pause between two attempts.
        hints_max: Hints that wait for one peer.
    """

    client: PeerClient
    home: ReplicaId
    boot: int
    cluster_id: str
    on_held: Callable[[Held], None]
    push_bytes_max: int
    push_tids_max: int
    push_timeout_s: float
    retry_wait_max_s: float
    hints_max: int
    _lanes: dict[ReplicaId, _Lane] = field(default_factory=dict, init=False)
    _open: dict[str, _Open] = field(default_factory=dict, init=False)
    _late: dict[str, _Open] = field(default_factory=dict, init=False)
    _late_bytes: int = field(default=0, init=False)

    def members(self, peers: Iterable[Peer]) -> None:
        """Process the present member list, without this replica. Struck replicas get nothing."""
        now = {peer.replica: peer for peer in peers if not peer.struck and peer.replica != self.home}
        for replica in [known for known in self._lanes if known not in now]:
            self._close_lane(self._lanes.pop(replica))
        for replica, peer in now.items():
            lane = self._lanes.get(replica)
            if lane is None:
                self._open_lane(peer)
            else:
                self._change_lane(lane, peer)
        for text in [text for text in self._late if not self._awaited(text)]:
            self._drop(text)

    def push(self, sealed: SealedTid, inline: Mapping[PartId, bytes]) -> None:
        """Send a sealed transaction to every peer, small parts with their bytes, the rest by reference."""
        text = str(sealed.tid)
        if text in self._open or not sealed.parts:
            return
        item = _Open(sealed, dict(inline), sum(map(len, inline.values())))
        self._open[text] = item
        for lane in self._lanes.values():
            lane.todo[text] = item
            lane.wake.set()

    def decided(self, tid: Tid) -> None:
        """Note that the transaction is committed: only peers that keep up still get it from here."""
        text = str(tid)
        item = self._open.get(text)
        if item is None or item.decided:
            return
        item.decided = True
        self._late[text] = item
        self._late_bytes += item.cost_bytes
        for lane in self._lanes.values():
            if lane.failures:
                lane.todo.pop(text, None)
        if not self._awaited(text):
            self._drop(text)
        while self._late_bytes > self.push_bytes_max:
            self._drop(next(iter(self._late)))

    def forget(self, tid: Tid) -> None:
        """Stop pushing the transaction, which is rolled back, and notify the peers, as a hint."""
        self._drop(str(tid))
        for lane in self._lanes.values():
            for hint in [hint for hint in lane.hints if hint.tid == tid]:
                lane.hints.remove(hint)
            if not lane.failures:
                lane.forgotten.append(tid)
                lane.wake.set()

    def drop(self, parts: Sequence[PartId]) -> None:
        """Notify the peers that a transaction, which goes on, has withdrawn these parts."""
        for lane in self._lanes.values():
            if not lane.failures:
                lane.dropped.extend(parts)
                lane.wake.set()

    def hint(self, tid: Tid, parts: Sequence[PartMeta], holder: ReplicaId | None = None) -> None:
        """Notify the peers of parts that are durable, here or at ``holder``, while their transaction runs."""
        for replica, lane in self._lanes.items():
            if not lane.failures and replica != holder:
                lane.hints.append(_Hint(tid, holder or self.home, parts))
                lane.wake.set()

    async def close(self) -> None:
        """Stop pushing."""
        tasks = [self._close_lane(lane) for lane in self._lanes.values()]
        self._lanes.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- lanes -----------------------------------------------------------------------------------------------

    def _open_lane(self, peer: Peer) -> None:
        bound = self.hints_max
        lane = _Lane(peer, deque(maxlen=bound), deque(maxlen=bound), deque(maxlen=bound))
        lane.todo = {text: item for text, item in self._open.items() if not item.decided}
        lane.task = asyncio.create_task(self._run(lane), name=f"push to {peer.replica}")
        self._lanes[peer.replica] = lane

    def _change_lane(self, lane: _Lane, peer: Peer) -> None:
        before, lane.peer = lane.peer, peer
        if peer.disk != before.disk:  # the content of another disk does not count (F7)
            lane.later.clear()
            for text, item in self._open.items():
                if item.acked.get(peer.replica) != peer.disk and not item.decided:
                    item.acked.pop(peer.replica, None)
                    lane.todo[text] = item
            lane.wake.set()
        if (peer.disk, peer.api, peer.alive) != (before.disk, before.api, before.alive):
            lane.changed.set()

    def _close_lane(self, lane: _Lane) -> asyncio.Task[None]:
        assert lane.task is not None
        lane.task.cancel()
        return lane.task

    def _awaited(self, text: str) -> bool:
        return any(text in lane.todo for lane in self._lanes.values())

    def _drop(self, text: str) -> None:
        item = self._open.pop(text, None)
        if item is None:
            return
        if self._late.pop(text, None) is not None:
            self._late_bytes -= item.cost_bytes
        for lane in self._lanes.values():
            lane.todo.pop(text, None)
            lane.later.pop(text, None)

    # -- the loop of one peer --------------------------------------------------------------------------------

    async def _run(self, lane: _Lane) -> None:
        while True:
            lane.wake.clear()
            lane.changed.clear()
            try:
                await self._send_hints(lane)
                batch, due = self._batch(lane)
                if not batch:
                    await _wait(lane.wake, None if due is None else due - _now())
                    continue
                await self._send(lane, batch)
                lane.failures = 0
            except Exception as error:
                self._failed(lane, error)
                await _wait(lane.changed, wait_s(lane.failures, self.retry_wait_max_s))

    def _failed(self, lane: _Lane, error: Exception) -> None:
        lane.failures += 1
        if lane.failures == 1:
            expected = isinstance(error, TidelockError)
            _log.warning("peer_lost", peer=lane.peer.replica, reason=str(error), exc_info=not expected)
        for waiting in (lane.forgotten, lane.dropped, lane.hints):
            waiting.clear()
        for text in [text for text, item in lane.todo.items() if item.decided]:
            del lane.todo[text]  # the peer gets it by the log when it is back
            if not self._awaited(text):
                self._drop(text)

    async def _send_hints(self, lane: _Lane) -> None:
        if lane.forgotten:
            tids = list(lane.forgotten)
            lane.forgotten.clear()
            await self.client.forget(lane.peer.api, tids)
        while lane.hints:
            hint = lane.hints.popleft()
            await self.client.hint(lane.peer.api, hint.tid, hint.holder, hint.parts)
        if lane.dropped:  # after the hints, which may concern the same parts
            parts = list(lane.dropped)
            lane.dropped.clear()
            await self.client.drop(lane.peer.api, parts)

    def _batch(self, lane: _Lane) -> tuple[list[tuple[_Open, bool]], float | None]:
        """Return what to send now, each with whether by reference only, and the time of the next retry."""
        batch: list[tuple[_Open, bool]] = []
        size, now, due = 0, _now(), None
        for text, item in lane.todo.items():
            later = lane.later.get(text)
            if later is not None and later.due > now:
                due = later.due if due is None else min(due, later.due)
                continue
            by_reference = later is not None and later.by_reference
            size += 0 if by_reference else item.inline_bytes
            if batch and (size > self.push_bytes_max or len(batch) == self.push_tids_max):
                break
            batch.append((item, by_reference))
        return batch, due

    async def _send(self, lane: _Lane, batch: Sequence[tuple[_Open, bool]]) -> None:
        peer = lane.peer
        try:
            body = wire.encode(
                home=self.home,
                boot=self.boot,
                cluster_id=self.cluster_id,
                tids=[item.sealed for item, _ in batch],
                inline=self._inline(batch),
            )
            await PUSH.before()
            held = await self.client.stage(peer.api, body, timeout_s=self.push_timeout_s)
            await PUSH.after()
        except TooLargeError as error:  # raised here, or by a peer with smaller limits
            if len(batch) > 1:
                await self._send(lane, batch[: len(batch) // 2])
            else:
                [(item, by_reference)] = batch
                self._ask_later(lane, item, error.message, by_reference=not by_reference)
            return
        if held.replica != peer.replica:
            raise UnavailableError(
                f"{peer.api} is the address of {peer.replica}, but {held.replica} answers there"
            )
        if lane.failures:
            _log.info("peer_back", peer=peer.replica, failures=lane.failures)
        taken = frozenset(held.held)
        for item, _ in batch:
            self._answered(lane, item, held, taken)
        self.on_held(held)

    def _inline(self, batch: Sequence[tuple[_Open, bool]]) -> dict[PartId, bytes]:
        """Return the bytes to send inline; what exceeds the bound within one transaction is left out."""
        inline: dict[PartId, bytes] = {}
        room = self.push_bytes_max
        for item, by_reference in batch:
            for part, data in () if by_reference else item.inline.items():
                room -= len(data)
                if room < 0 and inline:
                    return inline
                inline[part] = data
        return inline

    def _answered(self, lane: _Lane, item: _Open, held: Held, taken: frozenset[str]) -> None:
        text = str(item.sealed.tid)
        if lane.todo.get(text) is not item:
            return  # rolled back or dropped while the request was under way
        if text in taken:
            item.acked[lane.peer.replica] = held.disk
            if held.disk != lane.peer.disk:
                # The answer is about another disk than the one that counts now: a former one, or one that the
                # member list does not show yet.
                self._ask_later(lane, item, None, by_reference=True)
                return
            del lane.todo[text]
            lane.later.pop(text, None)
            if item.decided and not self._awaited(text):
                self._drop(text)
        else:
            # Without a refusal the peer has kept the inline parts and is fetching the rest: asking again
            # needs no bytes.
            reason = held.refused.get(text)
            self._ask_later(lane, item, reason, by_reference=reason is None)

    def _ask_later(self, lane: _Lane, item: _Open, reason: str | None, *, by_reference: bool) -> None:
        text = str(item.sealed.tid)
        attempts = lane.later[text].attempts + 1 if text in lane.later else 1
        if reason is not None and attempts == 1:
            _log.warning("push_refused", peer=lane.peer.replica, tid=text, reason=reason)
        due = _now() + wait_s(attempts, self.retry_wait_max_s)
        lane.later[text] = _Later(due, attempts, by_reference)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _wait(event: asyncio.Event, timeout_s: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):  # `wait_for` of Python 3.11 loses a cancellation
            await event.wait()
