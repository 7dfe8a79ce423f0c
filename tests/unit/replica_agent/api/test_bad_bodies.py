"""The answers of an agent to requests with invalid bodies."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.support.replicas.damage import no_damage
from tests.unit.replica_agent.api.test_state_answers import Agent
from tidelock.replica_agent.api.app import application
from tidelock.replica_agent.config.states import AgentState


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"label": "\xff"}', "utf-8"),
        (b'{"label": ', "truncated"),
        (b'{"label": 7}', "label is int, expected str"),
        (b'{"colour": "red"}', "colour"),
        (b"[]", "Expected `object`"),
    ],
    ids=["no utf-8", "cut", "another type", "unknown field", "a list"],
)
async def test_a_body_that_cannot_be_taken_is_a_bad_request(body: bytes, word: str) -> None:
    """The answer names the request, the fault of the body, and where its form is described."""
    app = application(Agent(AgentState.SERVING).services, no_damage)
    async with TestClient(TestServer(app)) as client:
        answer = await client.post("/api/v1/transactions", data=body)
        told = await answer.json()
    assert (answer.status, told["error"]) == (400, "BadRequestError")
    assert "the body of POST /api/v1/transactions is not as expected" in told["message"]
    assert word in told["message"]
    assert "docs/openapi.json" in told["message"]
