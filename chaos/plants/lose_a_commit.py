"""A home that was started again acknowledges its first commits and drops them.

That is a home that answers before the log has the commit: its client believes what no replica knows.
"""

from __future__ import annotations

import contextlib
from typing import Final
from unittest import mock

from tidelock.csnlog.core.results import Committed
from tidelock.errors import NotCommittedError
from tidelock.replica_agent.transactions.ending.commit import Commits
from tidelock.replica_agent.transactions.transaction import Transaction

#: So many commits of a boot, all but the first one, are lost.
LOST: Final = 5


def plant() -> None:
    """Let this process decide so."""
    decide, lost = Commits._decide, 0

    async def answer(self: Commits, tx: Transaction) -> Committed | None:
        nonlocal lost
        if self.transactions.boot == 1 or lost >= LOST or not tx.data_change or not tx.staged.any:
            return await decide(self, tx)
        lost += 1
        with contextlib.suppress(NotCommittedError):
            await self._refuse(tx, NotCommittedError("planted"))
        return Committed(self.applied.reader.snapshot_csn())

    mock.patch.object(Commits, "_decide", answer).start()
