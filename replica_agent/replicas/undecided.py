"""Decides transactions that are undecided here, and deletes the parts of those that were rolled back.

A home notifies its peers of a rollback by a hint, which may be lost. So an agent that holds parts of an
undecided transaction, or fetches some early, asks for its outcome (F12). These include its own transactions
whose rollback could not write the catalog. Parts that a transaction has made and removed again are in no
record; if a peer got an early hint of them, they are deleted when the record is applied.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import structlog

from tidelock.csnlog.core.ids import Tid
from tidelock.csnlog.core.results import Aborted, Outcome
from tidelock.errors import TidelockError
from tidelock.replica_agent.storage.catalog import Catalog

_log = structlog.get_logger("undecided")


@dataclass(slots=True, eq=False, repr=False)
class UndecidedResolver:
    """Checks undecided transactions.

    Attributes:
        catalog: Names the transactions that are undecided here.
        outcome: Finds the outcome of a transaction with something undecided here.
        rescue: Commits rows that landed with an aborted transaction; returns whether that is settled.
        forget: Drops the parts of aborted transactions, and fetches no more of them.
        fetching: Returns the undecided transactions whose parts are being fetched.
    """

    catalog: Catalog
    outcome: Callable[[Tid], Awaitable[Outcome]]
    rescue: Callable[[Tid], Awaitable[bool]]
    forget: Callable[[list[Tid]], Awaitable[None]]
    fetching: Callable[[], Collection[str]]
    _seen: set[str] = field(default_factory=set, init=False)

    async def resolve_all(self) -> None:
        """Ask about each transaction that was undecided at the last check already."""
        undecided = {*self.catalog.reader.prepared(), *self.fetching()}
        again = [Tid.parse(text) for text in sorted(undecided & self._seen)]
        self._seen = undecided
        over = [tid for tid in again if await self._is_over(tid)]
        landed = set(self.catalog.reader.landed_tids())
        await self._forget([tid for tid in over if str(tid) not in landed])
        for tid in over:  # one that cannot be rescued now says enough of the others
            if str(tid) in landed:
                if not await self.rescue(tid):
                    break
                await self._forget([tid])

    async def _forget(self, over: list[Tid]) -> None:
        if over:
            _log.info("undecided_cleaned", tids=[str(tid) for tid in over])
            await self.forget(over)

    async def _is_over(self, tid: Tid) -> bool:
        if self.catalog.reader.outcome(str(tid)) is not None:
            return True  # applied here: the rest of it was removed before its record was made
        try:
            return isinstance(await self.outcome(tid), Aborted)
        except TidelockError:
            return False
