"""The view of all replicas of the cluster in ZooKeeper: addresses, session, sign of life, progress.

Watches are hints and may be lost. So a znode that a hint names is read again, and every znode is read again
every ``refresh_s`` (Z8). The view may be old for a moment. It serves liveness and display, and says which
disk belongs to which replica. A decision that an old value must not make checks a version inside a multi.

Copies are counted for a version of ``replicas``, which is raised with each change that can take a copy away,
and which commits check. So that version is read first, and shown only when everything that it covers has been
read again behind it, in the same ZooKeeper session.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

import msgspec

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import ReplicaId
from tidelock.csnlog.core.model import MemberState, Progress, SessionState
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.core.store import LinkState, Node, Store
from tidelock.errors import CorruptError

log = logging.getLogger("tidelock.members")

T = TypeVar("T")

#: Pause before znodes are read again whose read failed while the link was up.
_RETRY_S = 0.2
#: Stands for the data of ``replicas`` among the paths to read, beside the list of its children.
_ROSTER = f"{tree.REPLICAS}#data"


class MemberView(msgspec.Struct, frozen=True):
    """One registered replica.

    Attributes:
        member: Its addresses; empty while it was never started.
        session: Boot, disk and state, or None if they could not be read: then its copies do not count.
        fence: Version of the session znode, -1 if ``session`` is None.
        alive: Whether its sign of life exists. It serves liveness only: the sign of a living replica may be
            missing here, and the sign of a dead replica exists until its session expires.
        progress: Its snapshot CSN and oldest S in use, or None if they could not be read.
    """

    member: MemberState
    session: SessionState | None
    fence: int
    alive: bool
    progress: Progress | None


class Members:
    """The view of one agent, kept up to date by a background task.

    Args:
        store: The store of the agent.
        refresh_s: How often every znode is read although no hint arrived.
    """

    def __init__(self, store: Store, *, refresh_s: float) -> None:
        self._store = store
        self._refresh_s = refresh_s
        self._replicas: tuple[ReplicaId, ...] = ()
        #: The last result of each read, None for a znode that does not exist.
        self._nodes: dict[str, Node | None] = {}
        self._to_read: set[str] = {_ROSTER, tree.REPLICAS}
        #: ``replicas`` as it was read last, the session of that read, and what was not read behind it yet.
        self._roster_read: Node | None = None
        self._roster_session = 0
        self._behind_roster: set[str] = set()
        self._roster: Node | None = None
        self._signs_of_life: set[str] = set()
        self._hints: dict[str, Callable[[], None]] = {}
        self._view: Mapping[ReplicaId, MemberView] = MappingProxyType({})
        self._listeners: list[Callable[[], None]] = []
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read every znode once, however long that takes, and keep reading from then on."""
        self._store.on_change(self._link_changed)
        while self._to_read:
            await self._read_all()
            if self._to_read:
                await self._sleep(_RETRY_S)
        self._task = asyncio.create_task(self._run(), name="members")

    async def watch(self) -> None:
        """Return when the reading task has ended; raise its error, since the view only gets older then."""
        assert self._task is not None, "not started"
        await asyncio.shield(self._task)

    async def close(self) -> None:
        """Stop reading; the view stays unchanged."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` (in the event loop) after every change of the view."""
        self._listeners.append(listener)

    def snapshot(self) -> Mapping[ReplicaId, MemberView]:
        """Return the present view; the returned mapping never changes."""
        return self._view

    @property
    def roster(self) -> Node | None:
        """``replicas``, at a version that is not newer than anything in the view; None before it was read."""
        return self._roster

    def disk_of(self, replica: ReplicaId) -> str | None:
        """Return the disk that a replica's acks must name to count, or None if they never count."""
        view = self._view.get(replica)
        return view.session.disk or None if view is not None and view.session is not None else None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        refresh_at_s = loop.time() + self._refresh_s
        while True:
            wait_s = refresh_at_s - loop.time()
            await self._sleep(min(wait_s, _RETRY_S) if self._to_read else wait_s)
            if loop.time() >= refresh_at_s:
                self._to_read.update(self._paths())
                refresh_at_s = loop.time() + self._refresh_s
            await self._read_all()

    async def _sleep(self, delay_s: float) -> None:
        """Wait for a hint, for at most ``delay_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._woken.wait()
        self._woken.clear()

    def _paths(self) -> list[str]:
        return [_ROSTER, tree.REPLICAS, *(path for replica in self._replicas for path in _paths_of(replica))]

    def _hint(self, path: str) -> None:
        self._to_read.add(path)
        self._woken.set()

    def _link_changed(self) -> None:
        if self._store.link is LinkState.CONNECTED and self._to_read:
            self._woken.set()

    async def _read_all(self) -> None:
        """Read the znodes that are due; a znode whose read fails stays due."""
        if _ROSTER in self._to_read:
            self._to_read.discard(_ROSTER)
            await self._read_roster()
        due, self._to_read = self._to_read, self._to_read & {_ROSTER}
        await asyncio.gather(*(self._read(path) for path in sorted(due - {_ROSTER})))
        view = {replica: self._view_of(replica) for replica in self._replicas if self._is_known(replica)}
        roster = self._covering_roster()
        if (view, roster) != (self._view, self._roster):
            self._view, self._roster = MappingProxyType(view), roster
            for listener in self._listeners:
                listener()

    async def _read_roster(self) -> None:
        """Read the data of ``replicas``; behind a new version all that it covers is read again."""
        hint = self._hints.setdefault(_ROSTER, functools.partial(self._hint, _ROSTER))
        session = self._store.session
        node = await self._store.get(tree.REPLICAS, watch=hint)
        if not isinstance(node, Ok):
            self._to_read.add(_ROSTER)
        elif self._roster_read is None or node.value.version > self._roster_read.version:
            self._roster_read, self._roster_session = node.value, session
            # A replica that is not known yet is read later, and does not count before.
            self._behind_roster = {
                path for replica in self._replicas for path in (tree.replica(replica), tree.session(replica))
            }
            self._to_read |= {tree.REPLICAS, *self._behind_roster}

    def _covering_roster(self) -> Node | None:
        """Return the newest roster behind which all that it covers was read, in one session."""
        if self._behind_roster:
            return self._roster
        if self._roster_read != self._roster and self._store.session != self._roster_session:
            self._roster_read = self._roster  # the reads may have come from a server that lags behind
            self._to_read.add(_ROSTER)
            self._woken.set()
        return self._roster_read

    async def _read(self, path: str) -> None:
        # One object for each path: a store arms the same callback on the same znode once only.
        hint = self._hints.setdefault(path, functools.partial(self._hint, path))
        if path == tree.REPLICAS:
            listed = await self._store.children(path, watch=hint)
            if isinstance(listed, Ok):
                self._take_list(tuple(ReplicaId(name) for name in sorted(listed.value)))
                return
        elif path in self._signs_of_life:
            sign = await self._store.exists(path, watch=hint)
            if isinstance(sign, Ok):
                self._nodes[path] = sign.value
                return
        else:
            node = await self._store.get(path, watch=hint)
            if isinstance(node, Ok):
                self._behind_roster.discard(path)
                self._take(path, node.value)
                return
            if node == Refused(Reason.NO_NODE):
                self._behind_roster.discard(path)
                self._nodes[path] = None
                return
        self._to_read.add(path)

    def _take_list(self, replicas: tuple[ReplicaId, ...]) -> None:
        new = set(replicas) - set(self._replicas)
        self._replicas = replicas
        self._signs_of_life = {tree.alive(replica) for replica in replicas}
        self._to_read.update(path for replica in new for path in _paths_of(replica))
        if new:
            self._woken.set()

    def _take(self, path: str, node: Node) -> None:
        """Keep what was read unless a lagging server showed an older state; the znode is never deleted."""
        before = self._nodes.get(path)
        if before is None or node.version >= before.version:
            self._nodes[path] = node

    def _is_known(self, replica: ReplicaId) -> bool:
        return all(path in self._nodes for path in _paths_of(replica))

    def _view_of(self, replica: ReplicaId) -> MemberView:
        session_path = tree.session(replica)
        session = _decoded(codec.decode_session, session_path, self._nodes[session_path])
        node = self._nodes[session_path]
        member = _decoded(codec.decode_member, tree.replica(replica), self._nodes[tree.replica(replica)])
        return MemberView(
            member=member or MemberState(),
            session=session,
            fence=node.version if node is not None and session is not None else -1,
            alive=self._nodes[tree.alive(replica)] is not None,
            progress=_decoded(
                codec.decode_progress, tree.progress(replica), self._nodes[tree.progress(replica)]
            ),
        )


def _paths_of(replica: ReplicaId) -> tuple[str, ...]:
    return tree.replica(replica), tree.session(replica), tree.alive(replica), tree.progress(replica)


def _decoded(decode: Callable[[bytes], T], path: str, node: Node | None) -> T | None:
    """Return the decoded data of a znode, or None: one unreadable replica must not hide the others."""
    if node is None:
        return None
    try:
        return decode(node.data)
    except CorruptError as error:
        log.warning("the member list ignores the unreadable znode %s: %s", path, error.message)
        return None
