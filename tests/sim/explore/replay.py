"""The product's coroutines as pure machines: run again from their beginning with the answers so far.

``open_session``, ``CsnLog.find`` and ``read_to_end`` are coroutines over a store. A coroutine cannot be
copied, so an explorer cannot go back to one that is half done. But it can be repeated: here the store answers
from a script, and when that is used up the coroutine is thrown away and what it asked for next is the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from tests.sim.explore.ensemble import Ensemble
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.follower import Follower
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import LinkState, Node, Op
from tidelock.csnlog.log import CsnLog

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReplayView:
    """From here on reads are answered from this state of the tree."""

    state: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The multi that was asked for ended with this result, by its number."""

    result: int


Script = tuple[ReplayView | Answered, ...]


@dataclass(frozen=True, slots=True)
class AsksMulti:
    """The coroutine waits for this multi."""

    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class AsksRead:
    """The coroutine waits for a read, which may see a newer state than those before."""

    path: str


@dataclass(frozen=True, slots=True)
class Returned:
    """The coroutine has ended."""

    value: Any


@dataclass(frozen=True, slots=True)
class RunRaised:
    """The coroutine has ended with this error."""

    error: Exception


Turn = AsksMulti | AsksRead | Returned | RunRaised


class ScriptEndsError(Exception):
    """Ends a run at what it asks for next."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn


class ScriptedStore:
    """The :class:`~tidelock.csnlog.core.store.Store` of one run.

    The sign of life (``alive``) is no matter of safety: it is left out of the tree and always well.

    Args:
        ensemble: Where reads are answered from.
        script: What is answered.
        split: Tells whether a read of the second path, right behind one of the first, may see a newer state.
            Always so behind a multi.
    """

    link = LinkState.CONNECTED
    session = 1

    def __init__(self, ensemble: Ensemble, script: Script, split: Callable[[str, str], bool]) -> None:
        self._ensemble, self._script, self._split = ensemble, list(script), split
        self._view: int | None = None
        self._path = ""

    def on_change(self, listener: Callable[[], None]) -> None:
        """Do nothing: the connection never changes within one run."""

    async def close(self) -> None:
        """There is nothing to end."""

    async def multi(self, ops: tuple[Op, ...]) -> Ok[tuple[object, ...]] | Refused | Unknown:
        """The next answer of the script."""
        if any(op.path.endswith("/alive") for op in ops):
            return Ok(tuple(None for _ in ops))
        self._view = None
        if not self._script:
            raise ScriptEndsError(AsksMulti(ops))
        answer = self._script.pop(0)
        assert isinstance(answer, Answered), answer
        return self._ensemble.results.values[answer.result]

    async def get(
        self, path: str, *, watch: Callable[[], None] | None = None
    ) -> Ok[Node] | Refused | Unknown:
        """A znode as the view shows it."""
        if path.endswith("/alive"):
            return Refused(Reason.NO_NODE)
        return self._ensemble.read(self._seen(path), path)

    async def exists(
        self, path: str, *, watch: Callable[[], None] | None = None
    ) -> Ok[Node | None] | Refused | Unknown:
        """Facts of a znode as the view shows them."""
        found = self._ensemble.tree(self._seen(path)).get(path)
        return Ok(None if found is None else found.node)

    async def children(
        self, path: str, *, watch: Callable[[], None] | None = None
    ) -> Ok[tuple[str, ...]] | Refused | Unknown:
        """Names of children as the view shows them."""
        found = self._ensemble.tree(self._seen(path)).get(path)
        return Refused(Reason.NO_NODE) if found is None else Ok(tuple(sorted(found.children)))

    def _seen(self, path: str) -> int:
        if self._view is None or (self._path and self._split(self._path, path)):
            if not self._script:
                raise ScriptEndsError(AsksRead(path))
            answer = self._script.pop(0)
            assert isinstance(answer, ReplayView), answer
            self._view = answer.state
        self._path = path
        return self._view


def never(_: str, __: str) -> bool:
    """All reads between two multis see one state."""
    return False


def fence_then_log(before: str, path: str) -> bool:
    """A read of the log may see a newer state than the read of a session znode before it, and vice versa."""
    return before.startswith(f"{tree.CSN}/") != path.startswith(f"{tree.CSN}/")


def let_write(log: CsnLog, follower: Follower) -> None:
    """Give a log its follower, as if ZooKeeper had shown what both have taken and written."""
    follower.proven = True
    engine = log._engine
    engine.follower, engine._fence_proven = follower, engine._connection


class Replays:
    """Runs coroutines with scripts, in an event loop of its own. Use it as a context manager."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Turn:
        """Run a coroutine over a :class:`ScriptedStore` until it ends or the script does."""
        try:
            return Returned(self._runner.run(coroutine))
        except ScriptEndsError as end:
            return end.turn
        except Exception as error:
            return RunRaised(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()
