"""Gives out tokens for transactions of this home, and looks at those that come back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tidelock.csnlog.core.ids import ReplicaId, TableName, Tid
from tidelock.csnlog.core.model import Member
from tidelock.errors import BadRequestError, TokenFinishedError, TokenForeignError, UnknownTransactionError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction, TxState
from tidelock.replica_agent.uploads.tokens import Right, TokenClaims, sign, verify

_OPEN = frozenset({TxState.OPEN})
#: A failed one can be rolled back; of the others the commit may be asked for once more.
_COMMITTABLE = frozenset({TxState.OPEN, TxState.FAILED, TxState.SEALED, TxState.COMMITTED})


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token that was just made, and when it expires: Unix time in seconds."""

    token: str
    expires_s: int


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TokenIssuer:
    """Signs and verifies the tokens of this home's transactions.

    Attributes:
        key: See :func:`tokens.key_of`.
        member: Where this replica is reached.
        wall_s: Unix time: a token is to mean the same after a restart of the clock's machine.
    """

    settings: AgentSettings
    key: bytes
    cluster: str
    replica: ReplicaId
    transactions: Transactions
    member: Member
    wall_s: Callable[[], float]

    def give(
        self,
        tx: Transaction,
        rights: Collection[str],
        tables: Collection[TableName] | None,
        ttl_s: float | None,
    ) -> IssuedToken:
        """Return a token for an open transaction.

        Raises:
            BadRequestError: There is no such right, or the time is out of range.
            TransactionClosedError: The transaction takes no statements.
        """
        self.transactions.require_open(tx)
        longest = self.settings.token_ttl_s
        ttl = longest if ttl_s is None else ttl_s
        if not 1 <= ttl <= longest:
            raise BadRequestError(f"ttl_s={ttl} is outside 1..{longest} (token_ttl_s)")
        known = {right.value: right for right in Right}
        if unknown := sorted(set(rights) - set(known)) or ([] if rights else ["nothing"]):
            raise BadRequestError(
                f"a token cannot allow {', '.join(unknown)}; it allows one or more of {', '.join(known)}"
            )
        claims = TokenClaims(
            self.cluster,
            tx.tid,
            frozenset(known[right] for right in rights),
            None if tables is None else frozenset(tables),
            int(self.wall_s() + ttl),
        )
        return IssuedToken(sign(self.key, claims), claims.expires_s)

    def find_open(self, tid: Tid) -> Transaction:
        """Return a transaction that takes files; TokenFinishedError if it takes nothing more."""
        return self._in_state(tid, _OPEN)

    def admit(self, token: str) -> tuple[TokenClaims, Transaction]:
        """Return what a token says, and its transaction, which is open.

        It is no sign of life: an executor may go on writing when its driver, who alone commits, is dead.

        Raises:
            TokenForgedError, TokenForeignError, TokenExpiredError: As :func:`tokens.verify`.
            TokenFinishedError: The transaction takes nothing more.
        """
        claims = self._verified(token)
        return claims, self._in_state(claims.tid, _OPEN)

    def admit_to(self, token: str, tid: str, right: Right | None) -> TokenClaims:
        """Return what a token says that a request about a transaction carries.

        Args:
            token: As the request has it.
            tid: Of the transaction that it is about.
            right: What it wants to do; None: what any token of that transaction is good for.

        Raises:
            TokenForgedError, TokenForeignError, TokenExpiredError: As :func:`tokens.verify`; foreign is also
                a token of another transaction.
            TokenFinishedError: The transaction takes this no more. A commit that was asked for, or has
                happened, may be asked for again, since its answer may have been lost.
            TokenRightError: It does not allow this.
        """
        claims = self._verified(token)
        if str(claims.tid) != tid:
            raise TokenForeignError(
                f"the token is for transaction {claims.tid}, and {tid} is asked for; make one there "
                "(tx.token())",
                tid=str(claims.tid),
            )
        if right is Right.COMMIT:
            self._in_state(claims.tid, _COMMITTABLE)
        else:
            self._in_state(claims.tid, _OPEN)
        if right is not None:
            claims.require_right(right)
        return claims

    def _verified(self, token: str) -> TokenClaims:
        return verify(self.key, token, cluster=self.cluster, replica=self.replica, now_s=self.wall_s())

    def _in_state(self, of: Tid, states: Collection[TxState]) -> Transaction:
        """Return the transaction of a token; TokenFinishedError unless it is in one of these states."""
        tid = str(of)
        try:
            tx = self.transactions.find(tid)
        except UnknownTransactionError as error:
            raise TokenFinishedError(
                f"the token's transaction {tid} has ended; begin a new one", tid=tid
            ) from error
        if tx.state not in states:
            why = f" ({tx.ending.error.message})" if tx.ending.error else ""
            raise TokenFinishedError(
                f"the token's transaction {tid} is {tx.state.value} and takes nothing more{why}",
                tid=tid,
                state=tx.state.value,
            )
        return tx
