"""Coroutines over a store that answers from a script of answers, where scripts of states are too many.

What a coroutine does depends on what it was told, not on the state of ZooKeeper that it was told from. So
courses that hear the same are one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.sim.explore.ensemble import Ensemble
from tests.sim.explore.replay import AsksMulti, AsksRead, ScriptEndsError
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import ReplicaId
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Check, LinkState, Node, Op
from tidelock.csnlog.log import LogState


class Heard(NamedTuple):
    """One answer, by its number in :attr:`Ensemble.results`."""

    result: int


class AnsweredStore:
    """The :class:`~tidelock.csnlog.core.store.Store` of one run; a turn that ends it names what was asked."""

    link = LinkState.CONNECTED
    session = 1

    def __init__(self, ensemble: Ensemble, script: tuple[Heard, ...]) -> None:
        self._ensemble, self._script = ensemble, list(script)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Do nothing: the connection never changes within one run."""

    async def close(self) -> None:
        """There is nothing to end."""

    async def multi(self, ops: tuple[Op, ...]) -> Ok[tuple[object, ...]] | Refused | Unknown:
        """The next answer."""
        return self._next(AsksMulti(ops))  # type: ignore[return-value]

    async def get(
        self, path: str, *, watch: Callable[[], None] | None = None
    ) -> Ok[Node] | Refused | Unknown:
        """The next answer."""
        return self._next(AsksRead(path))  # type: ignore[return-value]

    async def exists(
        self, path: str, *, watch: Callable[[], None] | None = None
    ) -> Ok[Node | None] | Refused | Unknown:
        """This read is never asked for."""
        raise NotImplementedError

    async def children(
        self, path: str, *, watch: Callable[[], None] | None = None
    ) -> Ok[tuple[str, ...]] | Refused | Unknown:
        """The next answer."""
        return self._next(AsksRead(path + LISTED))  # type: ignore[return-value]

    def _next(self, asks: AsksMulti | AsksRead) -> object:
        if not self._script:
            raise ScriptEndsError(asks)
        return self._ensemble.results.values[self._script.pop(0).result]


#: Behind a path: its children are asked for.
LISTED = "/*"


def hear(ensemble: Ensemble, state: int, path: str) -> Heard:
    """Return the answer to a read of a path in a state."""
    if not path.endswith(LISTED):
        return Heard(ensemble.results.number(ensemble.read(state, path)))  # type: ignore[arg-type]
    found = ensemble.tree(state).get(path.removesuffix(LISTED))
    answer = Refused(Reason.NO_NODE) if found is None else Ok(tuple(sorted(found.children)))
    return Heard(ensemble.results.number(answer))  # type: ignore[arg-type]


class FencedLog:
    """``CsnLog.fenced`` whose answers always come; a process that dies is modelled apart."""

    state = LogState.FOLLOWING

    def __init__(self, store: AnsweredStore, replica: ReplicaId, fence: int) -> None:
        self._store, self._check = store, Check(tree.session(replica), fence)

    async def fenced(self, ops: tuple[Op, ...]) -> Ok[tuple[object, ...]] | Refused | Unknown:
        """Send it behind the check of the fence."""
        match await self._store.multi((self._check, *ops)):
            case Ok(value=(_, *values)):
                return Ok(tuple(values))
            case Refused(reason, index) if index:
                return Refused(reason, index - 1)
            case _:
                return Unknown("fenced")
