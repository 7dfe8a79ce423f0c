"""Issues tokens for transactions of this home, and verifies the tokens of requests."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from tidelock.csnlog.core.ids import ReplicaId, Tid
from tidelock.csnlog.core.model import MemberState
from tidelock.errors import BadRequestError, TokenFinishedError, TokenForeignError, UnknownTransactionError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction, TxState
from tidelock.replica_agent.uploads.tokens import Right, TokenClaims, sign, verify
from tidelock.wire.ids import TableName

_OPEN = frozenset({TxState.OPEN})
#: A failed transaction can be rolled back; for the others a commit may be requested again.
_COMMITTABLE = frozenset({TxState.OPEN, TxState.FAILED, TxState.SEALED, TxState.COMMITTED})


class IssuedToken(msgspec.Struct, frozen=True):
    """A token that was just made, and when it expires: Unix time in seconds."""

    token: str
    expires_s: int


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TokenIssuer:
    """Signs and verifies the tokens of this home's transactions.

    Attributes:
        key: See :func:`tokens.key_of`.
        member: The addresses of this replica.
        monotonic: Seconds: when a token expires. The wall clock of a home may jump; no token is for a
            transaction of another boot.
        wall_s: Unix time, by which clients are told when a token expires.
    """

    settings: AgentSettings
    key: bytes
    cluster: str
    replica: ReplicaId
    transactions: Transactions
    member: MemberState
    monotonic: Callable[[], float]
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
            BadRequestError: A right does not exist, or the time is out of range.
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
            int(self.monotonic() + ttl),
        )
        return IssuedToken(sign(self.key, claims), int(self.wall_s() + ttl))

    def find_open(self, tid: Tid) -> Transaction:
        """Return a transaction that accepts files; TokenFinishedError if it accepts nothing more."""
        return self._in_state(tid, _OPEN)

    def admit(self, token: str) -> tuple[TokenClaims, Transaction]:
        """Return the claims of a token, and its transaction, which is open.

        This is not a sign of life: an executor may continue to write when its driver, which alone commits, is
        dead.

        Raises:
            TokenForgedError, TokenForeignError, TokenExpiredError: As :func:`tokens.verify`.
            TokenFinishedError: The transaction accepts nothing more.
        """
        claims = self._verified(token)
        return claims, self._in_state(claims.tid, _OPEN)

    def admit_to(self, token: str, tid: str, right: Right | None) -> TokenClaims:
        """Return the claims of a token in a request about a transaction.

        Args:
            token: The token of the request.
            tid: The tid of the transaction that the request is about.
            right: The right that the request needs; None: any token of that transaction is enough.

        Raises:
            TokenForgedError, TokenForeignError, TokenExpiredError: As :func:`tokens.verify`; foreign is also
                a token of another transaction.
            TokenFinishedError: The transaction does not accept this any more. A commit that was requested, or
                has happened, may be requested again, since its answer may have been lost.
            TokenRightError: The token does not allow this.
        """
        claims = self._verified(token)
        if str(claims.tid) != tid:
            raise TokenForeignError(
                f"the token is for transaction {claims.tid}, but the request is about {tid}; make a token of "
                "that transaction (tx.token())",
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
        return verify(self.key, token, cluster=self.cluster, replica=self.replica, now_s=self.monotonic())

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
                f"the token's transaction {tid} is {tx.state.value} and accepts nothing more{why}",
                tid=tid,
                state=tx.state.value,
            )
        return tx
