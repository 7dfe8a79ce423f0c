"""Decides what was left undecided here, and gives the parts of what was rolled back away.

A home tells its peers of a rollback by a hint, which may be lost. So an agent that holds parts of an
undecided transaction, or fetches some early, asks for its outcome (F12). Its own transactions
are among them where their rollback could not write the catalog. Parts that a transaction has made and removed
again stand in no record; those that a peer was told of early go when the record is applied.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import structlog

from tidelock.csnlog.core.ids import Tid
from tidelock.csnlog.core.results import Aborted, Outcome
from tidelock.errors import TidelockError
from tidelock.replica_agent.storage.catalog import Catalog

_log = structlog.get_logger("janitor")


class UndecidedResolver:
    """Looks at undecided transactions.

    Args:
        catalog: What is undecided here.
        outcome: Finds out what became of a transaction of which something is undecided here.
        forget: Drops the parts of aborted transactions, and fetches no more of them.
        fetching: Tells the undecided transactions of which parts are coming here.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        outcome: Callable[[Tid], Awaitable[Outcome]],
        forget: Callable[[list[Tid]], Awaitable[None]],
        fetching: Callable[[], Collection[str]],
    ) -> None:
        """Look at nothing yet."""
        self._catalog = catalog
        self._outcome, self._forget, self._fetching = outcome, forget, fetching
        self._seen: set[str] = set()

    async def look(self) -> None:
        """Ask about each transaction that was undecided at the last look already."""
        undecided = {*self._catalog.reader.prepared(), *self._fetching()}
        again = [Tid.parse(text) for text in sorted(undecided & self._seen)]
        self._seen = undecided
        over = [tid for tid in again if await self._is_over(tid)]
        if over:
            _log.info("undecided_cleaned", tids=[str(tid) for tid in over])
            await self._forget(over)

    async def _is_over(self, tid: Tid) -> bool:
        if self._catalog.reader.outcome(str(tid)) is not None:
            return True  # applied here: what is left of it was removed before its record was made
        try:
            return isinstance(await self._outcome(tid), Aborted)
        except TidelockError:
            return False
