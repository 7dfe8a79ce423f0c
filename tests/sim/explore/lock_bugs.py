"""Planted bugs of removal locks: pieces of the product replaced, each of which an exploration must notice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest import mock

from tests.sim.explore.lock_scene import LockMishaps, LockRemoval
from tests.sim.explore.lockers import LockPorts
from tests.sim.explore.locking import Locking
from tests.sim.explore.planted import Bug
from tests.sim.explore.replay import Replays
from tests.sim.explore.search import Model
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_MAX, Csn, ReplicaId
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Check, Node, Op, SetData
from tidelock.replication.core.lock_book import Book
from tidelock.replication.core.lock_rules import WholeTable
from tidelock.replication.locks import sweeper, taker
from tidelock.replication.locks.requests import LockStore

ONE: Final = tuple(LockRemoval(home, (1,)) for home in range(3))
#: The last of three replicas is registered while the first removes the part that it wants.
JOINING: Final = (ONE[0], ONE[2])
TABLE: Final = LockRemoval(1, wide=WholeTable())

_PASS_TAIL = Book.pass_tail
_FENCE_HOME = LockPorts.fence_home


def _check_nothing(path: str, _: int) -> Check:
    """A check that holds at any version."""
    return Check(path, -1)


def _set_versions_only(path: str, data: bytes = b"", version: int | None = None) -> Op:
    """The intention mark, which is set at any version, is left out."""
    return Check(path, -1) if version is None else SetData(path, data, version)


async def _nothing(*_: object) -> list[Any]:
    """Find nothing, without a read."""
    return []


def _pass_everything(book: Book, _: Csn) -> None:
    """Locks of committed removals go at once."""
    _PASS_TAIL(book, Csn(CSN_MAX))


async def _read_version(around: LockPorts, home: ReplicaId, boot: int) -> int | None:
    """A sweeper that finds the holder fenced deletes its locks under the version that it has read."""
    node: Ok[Node] = await around.store.get(tree.session(home))
    if codec.decode_session(node.value.data).state == "fenced":
        return node.value.version
    version: int | None = await _FENCE_HOME(around, home, boot)
    return version


def _locking(*removals: LockRemoval, **mishaps: int) -> Callable[..., Model]:
    def model(replays: Replays, **more: Any) -> Model:
        return Locking(replays, removals, LockMishaps(**mishaps), **more)

    return model


def _patched(owner: object, name: str, value: object) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(owner, name, value)


def _two_sweepers(replays: Replays, **more: Any) -> Model:
    """The first replica has died for good, the others want the part that it has locked."""
    return Locking(replays, ONE, LockMishaps(race=1), returns=(), orphan=True, **more)


_I7: Final = frozenset({"I7 NOCONFLICT"})

LOCK_BUGS: Final = (
    Bug(
        "delete a lock by its own version only",
        _I7,
        _two_sweepers,
        planted=_patched(sweeper, "Check", _check_nothing),
    ),
    Bug(
        "delete a lock under a fence that was only read",
        _I7,
        _two_sweepers,
        planted=_patched(LockPorts, "fence_home", _read_version),
    ),
    Bug(
        "serve from a new disk before it is where the old one was",
        _I7,
        lambda replays, **more: Locking(
            replays, ONE[:2], LockMishaps(crash=1, replace=1), victims=(1,), **more
        ),
        {"hasty": True},
    ),
    Bug(
        "serve a registered replica below its registration",
        _I7,
        lambda replays, **more: Locking(replays, JOINING, LockMishaps(), joins=True, **more),
        {"below": True},
    ),
    Bug(
        "register without a check of the progress",
        _I7,
        lambda replays, **more: Locking(replays, JOINING, LockMishaps(), joins=True, **more),
        {"unchecked": True},
    ),
    Bug("look before locking", _I7, _locking(*ONE[:2]), {"early_look": True}),
    Bug(
        "no intention mark",
        _I7,
        _locking(ONE[0], TABLE),
        planted=_patched(taker, "SetData", _set_versions_only),
    ),
    Bug(
        "no look for wide locks",
        _I7,
        _locking(ONE[0], TABLE),
        planted=_patched(LockStore, "fresh_wide_locks", _nothing),
    ),
    Bug(
        "a wide lock without a check of what was listed",
        _I7,
        _locking(ONE[0], TABLE),
        planted=_patched(taker, "Check", _check_nothing),
    ),
    Bug(
        "no lock stays until the tail",
        _I7,
        lambda replays, **more: Locking(replays, ONE[:2], LockMishaps(), eager=True, **more),
        planted=_patched(Book, "pass_tail", _pass_everything),
    ),
)
