"""What an agent in each state answers over HTTP: the table of states, asked where clients and peers ask."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.replica_agent.api.app import application
from tidelock.replica_agent.api.operations import Condition, Operations
from tidelock.replica_agent.config.states import ALLOWED, Action, AgentState
from tidelock.replica_agent.lifecycle.background import BackgroundTasks
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.transactions.registry import Transactions, TxState
from tidelock.replication.core.model import Held

APPLIED = Csn(5)

#: A request for each thing that an agent can be asked to do over HTTP; ``{tid}`` is an open transaction.
REQUESTS = [
    (Action.BEGIN, "POST", "/api/v1/transactions"),
    (Action.INSERT, "POST", "/api/v1/transactions/{tid}/rows/t"),
    (Action.COMMIT, "POST", "/api/v1/transactions/{tid}/commit"),
    (Action.READ, "GET", f"/api/v1/tables?csn={APPLIED}"),
    (Action.LATEST, "GET", f"/api/v1/tables?csn={APPLIED + 1}"),
    (Action.LATEST, "POST", "/api/v1/snapshots"),
    (Action.ACK, "POST", "/peer/v1/stage"),
    (Action.INSERT, "POST", "/peer/v1/uploads"),
    (Action.INSERT, "POST", "/peer/v1/uploads/r1-1-1"),
]


class Agent:
    """An agent whose parts are left out: whatever its state lets pass ends in an internal error."""

    def __init__(self, state: AgentState) -> None:
        self.condition = Condition(state, "as the test says")
        self.transactions = Transactions(ReplicaId("r1"), 1, settings(), time.monotonic)
        self.tx = self.transactions.begin(APPLIED)
        self.on_stage: Callable[[], None] = lambda: None
        left_out = cast("Any", None)
        self.operations = Operations(
            settings=settings(), replica=ReplicaId("r1"), session=left_out, clock=time.monotonic,
            condition=self.condition, metrics=left_out, catalog=left_out, waiters=CsnWaiters(APPLIED),
            log=left_out, membership=left_out, transactions=self.transactions,
            inserts=left_out, removals=left_out, mutations=left_out, derived=left_out, locks=left_out,
            writes=left_out, spread=left_out, foreign=left_out, commits=left_out, labels=left_out,
            outcomes=left_out, snapshots=left_out, read_pins=left_out, history=left_out, auditor=left_out,
            acceptor=cast("Any", self), changes=left_out, applier=left_out, sql=left_out,
            compactor=left_out, damaged=left_out,
        )  # fmt: skip

    async def stage(self, raw: bytes) -> Held:
        """Take a push (`PushReceiver`)."""
        del raw
        self.on_stage()
        return Held(ReplicaId("r1"), "d1", 1, APPLIED, (), {})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Callable[[str, str], Awaitable[tuple[int, Any]]]]:
        """Ask it."""
        async with TestClient(TestServer(application(self.operations))) as client:

            async def ask(method: str, path: str) -> tuple[int, Any]:
                answer = await client.request(method, path.format(tid=self.tx.tid))
                return answer.status, await answer.json()

            yield ask


@pytest.mark.parametrize("state", AgentState)
async def test_a_state_refuses_what_the_table_says(state: AgentState) -> None:
    """What is not allowed is answered "unavailable" or "standby" with the state; all else goes on."""
    agent = Agent(state)
    async with agent.serving() as ask:
        for action, method, path in REQUESTS:
            status, answer = await ask(method, path)
            refused = status == 503 and answer.get("details", {}).get("state") == state.value
            assert refused == (action not in ALLOWED[state]), (action, path, answer)
            assert agent.tx.state is TxState.OPEN


@pytest.mark.parametrize("state", [AgentState.SUSPENDED, AgentState.FENCED])
async def test_a_push_is_not_confirmed_by_a_replica_that_has_lost_its_state(state: AgentState) -> None:
    """Between the arrival of a push and its answer an agent may lose ZooKeeper, or be fenced."""
    agent = Agent(AgentState.SERVING)
    agent.on_stage = lambda: setattr(agent.condition, "state", state)
    async with agent.serving() as ask:
        status, answer = await ask("POST", "/peer/v1/stage")
    assert (status, answer["details"]["state"]) == (503, state.value)


async def test_a_commit_that_was_asked_for_is_answered_in_any_state() -> None:
    """Whoever repeats commit() learns how it ended, also from an agent that takes no commits any more."""
    agent = Agent(AgentState.STOPPED)
    agent.tx.state = TxState.SEALED
    async with agent.serving() as ask:
        status, answer = await ask("POST", "/api/v1/transactions/{tid}/commit")
    assert (status, answer["details"]) == (500, {})  # it reached the commits, which are left out here


@pytest.mark.parametrize("state", AgentState)
async def test_nothing_is_taken_away_in_a_state_of_doubt(state: AgentState) -> None:
    """The janitor and the cleaning leave everything where it is, unless the table says "collect"."""
    agent = Agent(state)
    upkeep = BackgroundTasks.__new__(BackgroundTasks)
    upkeep._operations = agent.operations
    done: list[str] = []

    async def work() -> None:
        done.append("taken away")

    await upkeep._if_collecting(work)()
    assert bool(done) == (Action.COLLECT in ALLOWED[state])
