"""What a failed query does to its transaction, and to a part whose bytes are wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tidelock.csnlog.core.ids import PartId
from tidelock.errors import (
    CorruptError,
    StandbyError,
    TidelockError,
    UnavailableError,
    UnknownTransactionError,
)
from tidelock.replica_agent.transactions.registry import Transactions


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QueryFailures:
    """Notes the failures of queries.

    Attributes:
        damaged: Called with a part whose bytes are wrong here, and with what was found.
    """

    transactions: Transactions
    damaged: Callable[[PartId, str], None]

    @contextlib.contextmanager
    def noted(self, tid: str | None) -> Iterator[None]:
        """Run a query of a transaction (None = of no one): one that fails leaves it rollback only.

        Only the answer "not now" does not: the same query may be repeated. A part that is damaged here is
        fetched again; outside a transaction the answer is "standby", since another replica has it.
        """
        try:
            yield
        except UnavailableError:
            raise
        except TidelockError as error:
            if isinstance(error, CorruptError) and (part := error.details.get("part")) is not None:
                self.damaged(part, error.message)
                if tid is None:
                    raise StandbyError(error.message, part=part) from error
            if tid is not None:
                with contextlib.suppress(UnknownTransactionError):
                    self.transactions.find(tid).ending.fail(error)
            raise
