"""When tokens expire: by the monotonic clock of the home, whatever its wall clock does."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.errors import TokenExpiredError
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.uploads.token_issuer import TokenIssuer

DAY_S = 86_400.0
TTL_S = 60.0


class Clocks:
    """The clocks of a home."""

    def __init__(self) -> None:
        self.monotonic_s, self.wall_s = 1_000.0, 1_700_000_000.0


@pytest.mark.parametrize("jump_s", [-3 * DAY_S, 3 * DAY_S])
def test_a_wall_clock_that_jumps_ends_no_token(jump_s: float) -> None:
    """A writer of an open transaction goes on; the token ends when its own time has really passed."""
    clocks, home = Clocks(), ReplicaId("r1")
    transactions = Transactions(home, 1, settings(), lambda: clocks.monotonic_s)
    issuer = TokenIssuer(
        settings=settings(),
        key=b"k" * 32,
        cluster="c1",
        replica=home,
        transactions=transactions,
        member=cast("Any", None),
        monotonic=lambda: clocks.monotonic_s,
        wall_s=lambda: clocks.wall_s,
    )
    tx = transactions.begin(Csn(5))
    made = issuer.give(tx, ["append"], None, TTL_S)
    assert made.expires_s == clocks.wall_s + TTL_S
    clocks.wall_s += jump_s
    assert issuer.admit(made.token)[1] is tx
    clocks.monotonic_s += TTL_S
    with pytest.raises(TokenExpiredError):
        issuer.admit(made.token)
