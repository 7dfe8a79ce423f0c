"""The consequences of a failed statement for its transaction, and for a part with wrong bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tidelock.errors import TidelockError, UnavailableError, UnknownTransactionError
from tidelock.replica_agent.storage.damaged_parts import DamagedParts
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import TxState


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QueryFailures:
    """Notes the failures of statements.

    Attributes:
        damage: Has the parts fetched again that a statement found damaged.
    """

    transactions: Transactions
    damage: DamagedParts

    @contextlib.contextmanager
    def noted(self, tid: str | None, subject: str, *, spoils: bool = True) -> Iterator[None]:
        """Run a statement of a transaction (None = outside of one); a failure leaves it rollback only.

        The answer "not now" is the one exception: the same statement may be repeated. A part that is damaged
        here is fetched again. Its error is retriable, but it does leave rollback only: half of the statement
        may be done.

        Args:
            tid: The transaction.
            subject: The statement, as messages name it.
            spoils: False: a failure leaves the transaction as it is: another process than its own asked.

        Raises:
            PartDamagedError: A part is damaged here.
            TransactionClosedError: The transaction ended during the statement, and its parts were deleted.
            Others as :meth:`TransactionEnding.failing`.
        """
        try:
            with self._failing(tid if spoils else None, subject):
                yield
        except TidelockError as error:
            if tid is not None:
                self._require_not_rolled_back(tid)
            if (damaged := self.damage.met(error)) is not None:
                raise damaged from error
            raise

    def _require_not_rolled_back(self, tid: str) -> None:
        """Raise the reason if a transaction was rolled back: its parts were deleted, and are not damaged."""
        with contextlib.suppress(UnknownTransactionError):
            tx = self.transactions.find(tid)
            if tx.state is TxState.ROLLED_BACK:
                self.transactions.require_open(tx)

    def _failing(self, tid: str | None, subject: str) -> AbstractContextManager[None]:
        if tid is not None:
            with contextlib.suppress(UnknownTransactionError):
                tx = self.transactions.find(tid)
                # A client that hangs up in the middle of its rows may go on with the transaction.
                return tx.ending.failing(subject, spared=(UnavailableError, ConnectionError))
        return contextlib.nullcontext()
