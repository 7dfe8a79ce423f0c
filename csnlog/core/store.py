"""The needs of the CSN log from ZooKeeper: a small asynchronous protocol with results as types. Pure.

:mod:`tidelock.csnlog.zookeeper.kazoo_store` implements it on a real ensemble and
:mod:`tidelock.csnlog.testing.memory_store` in memory with a plan of faults; both pass the same test suite. No
method raises for an answer of the store: see :mod:`tidelock.csnlog.core.results`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

import msgspec

from tidelock.csnlog.core.ids import Stamp
from tidelock.csnlog.core.results import Ok, Refused, Unknown

#: Checked as a version it means any.
ANY_VERSION: Final = -1


class Check(msgspec.Struct, frozen=True):
    """The data version of ``path`` must be ``version`` (ZooKeeper compares no other counter).

    At :data:`ANY_VERSION` it only has to exist.
    """

    path: str
    version: int


class Create(msgspec.Struct, frozen=True):
    """Create ``path``; ``sequential`` appends ten digits. The result of the element is the created path."""

    path: str
    data: bytes = b""
    sequential: bool = False
    ephemeral: bool = False


class SetData(msgspec.Struct, frozen=True):
    """Set the data of ``path``, at any ``version`` if None. The result of the element is :class:`Written`."""

    path: str
    data: bytes = b""
    version: int | None = None


class Written(msgspec.Struct, frozen=True):
    """The result of a :class:`SetData`: the new data version, and the stamp of the multi as a whole."""

    version: int
    stamp: Stamp


class Delete(msgspec.Struct, frozen=True):
    """Delete ``path`` at ``version``; -1 is any version, for a path that is never created a second time."""

    path: str
    version: int


Op = Check | Create | SetData | Delete

#: Bytes of a request around its operations, and around the path and data of one: lengths, flags, access list.
_REQUEST_BYTES = 32
_OP_BYTES = 64


def multi_bytes(ops: tuple[Op, ...], root: str = "") -> int:
    """Return an upper bound of the bytes of a multi on the wire, with all paths below ``root``."""
    size = _REQUEST_BYTES
    for op in ops:
        # A character of a path takes at most four bytes in UTF-8; almost all paths are ASCII.
        path = len(op.path) if op.path.isascii() else 4 * len(op.path)
        size += _OP_BYTES + len(root) + 1 + path
        if isinstance(op, Create | SetData):
            size += len(op.data)
    return size


class Node(msgspec.Struct, frozen=True):
    """Data and metadata of a znode.

    ``created`` is the stamp of the write that has created it, ``modified`` the zxid of that of its data.
    """

    data: bytes
    version: int
    children: int
    owner_session: int
    created: Stamp
    modified: int = 0


class LinkState(Enum):
    """State of the connection as the agent must judge it, by its own clock (Z5)."""

    #: Requests are answered.
    CONNECTED = "connected"
    #: No answer for 2/3 of the negotiated timeout, or no connection: nothing may be acknowledged, "latest" is
    #: not served.
    SUSPENDED = "suspended"


class Store(Protocol):
    """One ZooKeeper session at a time. Paths are relative to the cluster's root, without slash at either end.

    While ``link`` is SUSPENDED every call is Refused(NOT_CONNECTED) at once: nothing is queued for later. A
    call that was under way when the link broke is Unknown.

    A watch is called once, in the event loop: when the znode changes, or when a new connection or session was
    made, since changes may have been missed meanwhile. It is a hint; read again and compare. A call that did
    not end Ok arms no watch. The same callback on the same znode is armed once, however often it is passed;
    it must not raise.
    """

    @property
    def link(self) -> LinkState:
        """The present state of the connection."""

    @property
    def session(self) -> int:
        """Number of the present session; changes with a new session. 0 before the first session."""

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` (in the event loop) after every change of link or session."""

    async def multi(self, ops: tuple[Op, ...]) -> Ok[tuple[object, ...]] | Refused | Unknown:
        """Apply all operations or none. Ok holds one value per element: path, :class:`Written`, or None.

        A request above the size limit is Refused(TOO_LARGE) before it is sent (a server would drop the
        connection).
        """

    async def get(
        self, path: str, *, watch: Callable[[], None] | None = None
    ) -> Ok[Node] | Refused | Unknown:
        """Read a znode; Refused(NO_NODE) if it does not exist, and then ``watch`` is not armed."""

    async def exists(
        self, path: str, *, watch: Callable[[], None] | None = None
    ) -> Ok[Node | None] | Refused | Unknown:
        """Return the metadata of a znode (data empty), or None; ``watch`` also reports its creation."""

    async def children(
        self, path: str, *, watch: Callable[[], None] | None = None
    ) -> Ok[tuple[str, ...]] | Refused | Unknown:
        """Return the names of the children, unordered; ``watch`` reports new and deleted ones, not data."""

    async def close(self) -> None:
        """End the session; ephemeral znodes are deleted at once."""
