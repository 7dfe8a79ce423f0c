"""The answers of an agent over HTTP in each of its states, checked against the table of states."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.support.replicas.damage import malformed, stopped_for_damage
from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.errors import CatalogDamagedError, TidelockError
from tidelock.replica_agent.api.app import application
from tidelock.replica_agent.config.states import ALLOWED, AgentAction, AgentState, Condition
from tidelock.replica_agent.lifecycle.background import BackgroundTasks
from tidelock.replica_agent.services.administration import AdministrationService
from tidelock.replica_agent.services.bundle import Services
from tidelock.replica_agent.services.definitions import DefinitionService
from tidelock.replica_agent.services.history import HistoryService
from tidelock.replica_agent.services.members import MembersService
from tidelock.replica_agent.services.peers import PeerService
from tidelock.replica_agent.services.reads import ReadService
from tidelock.replica_agent.services.status import StatusService
from tidelock.replica_agent.services.tags import TagService
from tidelock.replica_agent.services.transactions import TransactionService
from tidelock.replica_agent.services.uploads import UploadService
from tidelock.replica_agent.storage.catalog_damage import catalog_damage
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import TxState
from tidelock.replication.core.model import Held

T = TypeVar("T")

APPLIED = Csn(5)

#: A request for each action of an agent over HTTP; ``{tid}`` is an open transaction.
REQUESTS = [
    (AgentAction.BEGIN, "POST", "/api/v1/transactions"),
    (AgentAction.INSERT, "POST", "/api/v1/transactions/{tid}/rows/t"),
    (AgentAction.COMMIT, "POST", "/api/v1/transactions/{tid}/commit"),
    (AgentAction.READ, "GET", f"/api/v1/tables?csn={APPLIED}"),
    (AgentAction.LATEST, "GET", f"/api/v1/tables?csn={APPLIED + 1}"),
    (AgentAction.LATEST, "POST", "/api/v1/snapshots"),
    (AgentAction.ACK, "POST", "/peer/v1/stage"),
    (AgentAction.INSERT, "POST", "/peer/v1/uploads"),
    (AgentAction.INSERT, "POST", "/peer/v1/uploads/r1-1-1"),
]


class Agent:
    """An agent without its parts: a request that its state allows ends in an internal error."""

    def __init__(self, state: AgentState) -> None:
        self.condition = Condition("r1", state, "as the test says")
        self.transactions = Transactions(ReplicaId("r1"), 1, settings(), time.monotonic)
        self.tx = self.transactions.begin(APPLIED)
        self.on_stage: Callable[[], None] = lambda: None
        self.damaged: list[str] = []
        reads = self._service(ReadService)
        self.services = Services(
            settings=settings(),
            condition=self.condition,
            transactions=self._service(TransactionService, transactions=self.transactions),
            reads=reads,
            history=self._service(HistoryService),
            uploads=self._service(UploadService),
            peers=self._service(PeerService, receiver=self),
            administration=self._service(AdministrationService, reads=reads),
            definitions=self._service(DefinitionService),
            status=self._service(StatusService),
            members=self._service(MembersService),
            tags=self._service(TagService),
        )

    def _service(self, service: Callable[..., T], **parts: object) -> T:
        """Return a service with these parts, its condition and its waiters; the others are left out."""
        parts |= {"settings": settings(), "condition": self.condition, "waiters": CsnWaiters(APPLIED)}
        fields = cast("Any", service).__dataclass_fields__
        return service(**{name: parts.get(name) for name, found in fields.items() if found.init})

    def damage(self, error: Exception) -> TidelockError | None:
        """Note what a request has found, as the agent does."""
        if (found := stopped_for_damage(error)) is not None:
            self.damaged.append(found.message)
        return found

    async def stage(self, raw: bytes) -> Held:
        """Receive a push (`PushReceiver`)."""
        del raw
        self.on_stage()
        return Held(ReplicaId("r1"), "d1", 1, APPLIED, (), {})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Callable[[str, str], Awaitable[tuple[int, Any]]]]:
        """Serve it, and return a function that sends it a request."""
        async with TestClient(TestServer(application(self.services, self.damage))) as client:

            async def ask(method: str, path: str) -> tuple[int, Any]:
                answer = await client.request(method, path.format(tid=self.tx.tid))
                return answer.status, await answer.json()

            yield ask


@pytest.mark.parametrize("state", AgentState)
async def test_a_state_refuses_what_the_table_says(state: AgentState) -> None:
    """A forbidden request is answered "unavailable" or "standby" with the state; others pass."""
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


@pytest.mark.parametrize("found", [malformed(), CatalogDamagedError("the catalog is no database")])
async def test_a_request_that_finds_the_catalog_damaged_stops_the_agent(found: Exception) -> None:
    """The agent hears of it: its own tasks may not read that table soon. The client goes on elsewhere."""
    agent = Agent(AgentState.SERVING)

    def read() -> None:
        raise found

    agent.on_stage = read
    async with agent.serving() as ask:
        status, answer = await ask("POST", "/peer/v1/stage")
    assert (status, answer["error"], answer["details"]["state"]) == (503, "UnavailableError", "stopped")
    assert agent.damaged == [answer["message"]]
    assert str(catalog_damage(found)) in answer["message"]


async def test_another_error_of_a_request_stops_nothing() -> None:
    """A table that is locked, or missing, is a fault of a request; its client is told no details."""
    agent = Agent(AgentState.SERVING)

    def read() -> None:
        raise sqlite3.OperationalError("no such table: x")

    agent.on_stage = read
    async with agent.serving() as ask:
        status, answer = await ask("POST", "/peer/v1/stage")
    assert (status, answer["error"], agent.damaged) == (500, "TidelockError", [])


async def test_a_commit_that_was_asked_for_is_answered_in_any_state() -> None:
    """A client that repeats commit() learns the outcome, also when no commits are accepted."""
    agent = Agent(AgentState.STOPPED)
    agent.tx.ending.seal()
    async with agent.serving() as ask:
        status, answer = await ask("POST", "/api/v1/transactions/{tid}/commit")
    assert (status, answer["details"]) == (500, {})  # the request reached the commits


@pytest.mark.parametrize("state", AgentState)
async def test_nothing_is_taken_away_in_a_state_of_doubt(state: AgentState) -> None:
    """The background tasks that delete something do nothing unless the table allows "collect"."""
    agent = Agent(state)
    background = BackgroundTasks.__new__(BackgroundTasks)
    background._condition = agent.condition
    done: list[str] = []

    async def work() -> None:
        done.append("taken away")

    await background._if_collecting(work)()
    assert bool(done) == (AgentAction.COLLECT in ALLOWED[state])
