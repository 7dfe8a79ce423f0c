"""How a request finds its transaction: two ways, which differ in what else they mean."""

from __future__ import annotations

from tidelock.replica_agent.config.states import Action, Condition
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction, TxState


def find_with_sign_of_life(transactions: Transactions, tid: str, *, shown: bool) -> Transaction:
    """Return a transaction, whatever its state; its lease begins anew if the request shows life.

    Raises:
        UnknownTransactionError: There is none.
    """
    tx = transactions.find(tid)
    if shown:
        transactions.touch(tx)
    return tx


def find_for_statement(
    transactions: Transactions, condition: Condition, tid: str, *, sign_of_life: bool = True
) -> Transaction:
    """Return a transaction that a statement is for.

    Of one that takes no statements the statement itself tells more than the state of the agent does.

    Raises:
        UnknownTransactionError: There is none.
        UnavailableError: It is open, and the agent takes no statements now.
    """
    tx = find_with_sign_of_life(transactions, tid, shown=sign_of_life)
    if tx.state is TxState.OPEN:
        condition.require(Action.INSERT)
    return tx
