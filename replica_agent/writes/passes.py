"""Gives out tokens for transactions of this home, and looks at those that come back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tidelock.csnlog.ids import ReplicaId, TableName
from tidelock.csnlog.model import Member
from tidelock.errors import BadRequestError, TokenFinishedError, UnknownTransactionError
from tidelock.replica_agent.settings import AgentSettings
from tidelock.replica_agent.transactions import Transaction, Transactions, TxState
from tidelock.replica_agent.writes.tokens import Claims, Right, sign, verify


@dataclass(frozen=True, slots=True)
class Pass:
    """A token that was just made, and when it expires: Unix time in seconds."""

    token: str
    expires_s: int


class Passes:
    """Signs and verifies the tokens of this home's transactions.

    Args:
        key: See :func:`tokens.key_of`.
        member: Where this replica is reached.
        wall_s: Unix time: a token is to mean the same after a restart of the clock's machine.
    """

    def __init__(
        self,
        *,
        settings: AgentSettings,
        key: bytes,
        cluster: str,
        replica: ReplicaId,
        transactions: Transactions,
        member: Member,
        wall_s: Callable[[], float],
    ) -> None:
        self._settings, self._key, self._cluster = settings, key, cluster
        self._replica, self._transactions, self._wall_s = replica, transactions, wall_s
        self.member = member

    def give(
        self,
        tx: Transaction,
        rights: Collection[str],
        tables: Collection[TableName] | None,
        ttl_s: float | None,
    ) -> Pass:
        """Return a token for an open transaction.

        Raises:
            BadRequestError: There is no such right, or the time is out of range.
            TransactionClosedError: The transaction takes no statements.
        """
        self._transactions.require_open(tx)
        longest = self._settings.token_ttl_s
        ttl = longest if ttl_s is None else ttl_s
        if not 1 <= ttl <= longest:
            raise BadRequestError(f"ttl_s={ttl} is outside 1..{longest} (token_ttl_s)")
        known = {right.value: right for right in Right}
        if unknown := sorted(set(rights) - set(known)) or ([] if rights else ["nothing"]):
            raise BadRequestError(
                f"a token cannot allow {', '.join(unknown)}; it allows one or more of {', '.join(known)}"
            )
        claims = Claims(
            self._cluster,
            tx.tid,
            frozenset(known[right] for right in rights),
            None if tables is None else frozenset(tables),
            int(self._wall_s() + ttl),
        )
        return Pass(sign(self._key, claims), claims.expires_s)

    def admit(self, token: str) -> tuple[Claims, Transaction]:
        """Return what a token says, and its transaction, which is open.

        It is no sign of life: an executor may go on writing when its driver, who alone commits, is dead.

        Raises:
            TokenForgedError, TokenForeignError, TokenExpiredError: As :func:`tokens.verify`.
            TokenFinishedError: The transaction takes nothing more.
        """
        claims = verify(self._key, token, cluster=self._cluster, replica=self._replica, now_s=self._wall_s())
        tid = str(claims.tid)
        try:
            tx = self._transactions.find(tid)
        except UnknownTransactionError as error:
            raise TokenFinishedError(
                f"the token's transaction {tid} has ended; begin a new one", tid=tid
            ) from error
        if tx.state is not TxState.OPEN:
            why = f" ({tx.error.message})" if tx.error else ""
            raise TokenFinishedError(
                f"the token's transaction {tid} is {tx.state.value} and takes nothing more{why}", tid=tid
            )
        return claims, tx
