"""The lookup of a request's transaction: two functions, which differ in their effects."""

from __future__ import annotations

from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction, TxState


def find_with_sign_of_life(transactions: Transactions, tid: str, *, shown: bool) -> Transaction:
    """Return a transaction in any state; its lease restarts if the request is a sign of life.

    Raises:
        UnknownTransactionError: It does not exist.
    """
    tx = transactions.find(tid)
    if shown:
        transactions.touch(tx)
    return tx


def find_for_statement(
    transactions: Transactions, condition: Condition, tid: str, *, sign_of_life: bool = True
) -> Transaction:
    """Return the transaction of a statement.

    The agent's state is checked for an open transaction only. For a transaction that accepts no statements,
    the error of the statement itself says more than the state of the agent does.

    Raises:
        UnknownTransactionError: It does not exist.
        UnavailableError: It is open, and the agent accepts no statements now.
    """
    tx = find_with_sign_of_life(transactions, tid, shown=sign_of_life)
    if tx.state is TxState.OPEN:
        condition.require(AgentAction.INSERT)
    return tx
