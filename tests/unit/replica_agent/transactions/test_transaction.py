"""The states of a transaction: one table defines the order of states, and nothing bypasses it."""

from __future__ import annotations

import itertools

import pytest

from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.results import Committed
from tidelock.errors import BadRequestError
from tidelock.replica_agent.transactions.transaction import (
    TRANSITIONS,
    InvalidTransitionError,
    TransactionEnding,
    TxState,
)

#: How a fresh transaction comes into each state.
WAYS = {
    TxState.OPEN: (),
    TxState.FAILED: (TxState.FAILED,),
    TxState.SEALED: (TxState.SEALED,),
    TxState.COMMITTED: (TxState.SEALED, TxState.COMMITTED),
    TxState.ROLLED_BACK: (TxState.ROLLED_BACK,),
}


def enter(ending: TransactionEnding, state: TxState) -> None:
    """Enter a state, by the method for it."""
    match state:
        case TxState.FAILED:
            ending.fail(BadRequestError("refused"))
        case TxState.SEALED:
            ending.seal()
        case _:
            outcome = Committed(Csn(9)) if state is TxState.COMMITTED else None
            ending.close(state, at=1.0, totals=(0, 0, 0), outcome=outcome, error=None)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(TxState, TxState)))
def test_only_the_table_lets_a_state_follow_another(before: TxState, after: TxState) -> None:
    """Each pair is tried; what is refused changes nothing, and to fail twice is no transition."""
    ending = TransactionEnding()
    for state in WAYS[before]:
        enter(ending, state)
    assert ending.state is before
    if after in TRANSITIONS[before]:
        enter(ending, after)
        assert ending.state is after
    elif after is TxState.FAILED:
        enter(ending, after)
        assert ending.state is before
    else:
        with pytest.raises(InvalidTransitionError, match=f"{before.value} becomes {after.value}"):
            enter(ending, after)
        assert (ending.state, ending.outcome is None) == (before, before is not TxState.COMMITTED)


def test_the_first_reason_of_a_failure_is_kept() -> None:
    """A statement that is refused after another one does not hide what went wrong first."""
    ending = TransactionEnding()
    ending.fail(BadRequestError("the first"))
    ending.fail(BadRequestError("the second"))
    assert ending.error is not None
    assert ending.error.message == "the first"
