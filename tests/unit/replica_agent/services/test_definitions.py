"""A definition in a transaction of its own: it is decided again after a commit that it has met."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tidelock.errors import (
    TableChangedError,
    TableExistsError,
    TidelockError,
    TransactionClosedError,
    UnknownTableError,
)
from tidelock.replica_agent.services.definitions import DefinitionService

LATER = 10.0


class Home:
    """Transactions of a home, as far as a definition needs them; `refusals` are those of their commits."""

    def __init__(self, *refusals: TidelockError | None) -> None:
        self.refusals = list(refusals)
        self.now_s = 0.0
        self.rolled_back: list[Any] = []

    def begin(self, _reached: int) -> Any:
        """Return a transaction."""
        ending = SimpleNamespace(error=None)
        return SimpleNamespace(tid=len(self.refusals), staged=SimpleNamespace(), ending=ending, leased=True)

    async def roll_back(self, tx: Any) -> None:
        """Note it."""
        self.rolled_back.append(tx)
        tx.leased = False

    async def commit(self, _tid: int, **_: Any) -> str:
        """Commit, unless it is refused."""
        if (refusal := self.refusals.pop(0)) is not None:
            raise refusal
        return "committed"

    def service(self) -> DefinitionService:
        """Return the service."""

        async def nothing(*_: Any, **__: Any) -> tuple[int, int]:
            return 0, 0

        parts: dict[str, Any] = dict.fromkeys(DefinitionService.__slots__)
        parts |= {
            "settings": SimpleNamespace(commit_timeout_s=LATER),
            "condition": SimpleNamespace(require=lambda _action: None),
            "log": SimpleNamespace(tables=nothing),
            "waiters": SimpleNamespace(require=nothing, reached=0),
            "transactions": self,
            "commits": self,
            "clock": lambda: self.now_s,
        }
        return DefinitionService(**parts)


CHANGED, EXISTS = TableChangedError("it was changed"), TableExistsError("it exists")
CLOSED = TransactionClosedError("it was dropped; roll back")


def dropping(home: Home, *, within: bool) -> Callable[[Any], Any]:
    """Return a statement whose table is dropped by another commit at its first call."""
    calls = []

    async def statement(tx: Any) -> Any:
        calls.append(tx)
        if len(calls) == 1:
            tx.ending.error = CHANGED
            if within:
                raise CLOSED
        return f"made at call {len(calls)}"

    return statement


@pytest.mark.parametrize("refusal", [CHANGED, EXISTS])
async def test_a_definition_that_meets_another_one_is_decided_again(refusal: TidelockError) -> None:
    """Until it is committed, or its time is over."""
    home = Home(refusal, refusal, None)

    async def statement(_tx: Any) -> Any:
        home.now_s += 1.0
        return "made"

    found: Any = await home.service().alone(statement)
    assert (found.made, found.done, home.now_s) == ("made", "committed", 3.0)
    home = Home(*[refusal] * 20)
    with pytest.raises(type(refusal)):
        await home.service().alone(statement)
    assert home.now_s > LATER


@pytest.mark.parametrize("within", [True, False])
async def test_a_table_that_is_dropped_meanwhile_is_looked_for_again(within: bool) -> None:
    """The transaction of its own is closed by the drop; its caller knows of no transaction."""
    home = Home(None) if within else Home(CLOSED, None)
    found: Any = await home.service().alone(dropping(home, within=within))
    assert (found.made, found.done) == ("made at call 2", "committed")
    assert len(home.rolled_back) == 1


async def test_other_refusals_are_passed_on() -> None:
    """With everything taken back: of a statement, and of a transaction that was closed for another reason."""
    home = Home(CLOSED)

    async def statement(_tx: Any) -> Any:
        return "made"

    with pytest.raises(TransactionClosedError):
        await home.service().alone(statement)

    for refusal in (UnknownTableError("there is none"), EXISTS, CHANGED):
        refusals: list[TidelockError] = [
            refusal
        ]  # of the statement, which sees what is there: it is asked once

        async def refused(_tx: Any, refusals: list[TidelockError] = refusals) -> Any:
            raise refusals.pop()

        with pytest.raises(type(refusal)):
            await home.service().alone(refused)
    assert len(home.rolled_back) == 4
