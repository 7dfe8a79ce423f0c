"""Agents that are frozen: a reader that can ask another one finds out soon, and does not come back too early.

No time is measured: an agent that never answers would hold the test until it ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.support.replicas.fake_agent import FakeAgent, FakeCluster
from tests.support.replicas.fake_http import Fault
from tests.support.waiting import eventually
from tidelock.client import Database, connect
from tidelock.client.agents import watched
from tidelock.errors import NoAnswerError, NotCommittedError

#: Two batches, so that an agent can freeze between them.
ROWS = pa.Table.from_batches([pa.record_batch({"k": [1, 2]}), pa.record_batch({"k": [3]})])


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients look after a short while; on a busy machine agents that are well may show life late."""
    monkeypatch.setattr(watched, "LOOK_AFTER_S", 0.1)
    monkeypatch.setattr("tidelock.client.agents.transport.SHOW_S", 5.0)


@pytest.fixture
def db(fake_cluster: FakeCluster) -> Iterator[Database]:
    """A client of `r1`, with the patience that clients have."""
    fake_cluster.add_table("u", ROWS)
    with connect(fake_cluster["r1"].url) as db:
        yield db


def paths(agent: FakeAgent, since: int = 0) -> list[str]:
    """Return what an agent was asked for, but for the list of members."""
    return [request.path for request in agent.requests[since:] if request.path != "/status"]


def freeze(agent: FakeAgent) -> None:
    """Let an agent answer nothing any more."""
    agent.plan(".*", *[Fault.SILENCE] * 100)


@pytest.mark.slow
def test_a_query_of_a_frozen_agent_goes_on_at_another_one(fake_cluster: FakeCluster, db: Database) -> None:
    """It waits once, although a query may take minutes; the next reads ask the other one first.

    Nor does the end of the snapshot wait for the frozen agent, which holds its pin.
    """
    frozen, other = fake_cluster["r1"], fake_cluster["r2"]
    with db.snapshot() as snap:
        since = len(frozen.requests)
        freeze(frozen)
        for _ in range(3):
            assert snap.read("u") == ROWS
    assert paths(frozen, since) == ["/query", "/healthz"]
    assert other.count("POST /query") + fake_cluster["r3"].count("POST /query") == 3


@pytest.mark.slow
def test_rows_of_an_agent_that_freezes_in_their_middle(fake_cluster: FakeCluster, db: Database) -> None:
    """They are read again at another one; a stream says that it is not whole."""
    frozen, other = fake_cluster["r1"], fake_cluster["r2"]
    with db.snapshot() as snap:
        since = len(frozen.requests)
        for agent in (frozen, other):
            agent.plan("POST /query", Fault.HALF)
            agent.plan("GET /healthz", *[Fault.SILENCE] * 10)
        assert snap.read("u") == ROWS
        assert paths(frozen, since)[0] == "/query"
        assert fake_cluster["r3"].count("POST /query") == 1
        fake_cluster["r3"].plan("POST /query", Fault.HALF)
        fake_cluster["r3"].plan("GET /healthz", *[Fault.SILENCE] * 10)
        stream = snap.scan("u").to_batches()
        assert next(stream).num_rows == 2
        with pytest.raises(NoAnswerError, match="fell silent"):
            next(stream)


def test_an_agent_that_is_only_slow_is_waited_for(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows that it lives, as often as the client looks, and its answer is taken."""
    monkeypatch.setattr("tidelock.client.agents.transport.SHOW_S", 60.0)
    fake_cluster.add_table("u", ROWS)
    slow, other = fake_cluster["r1"], fake_cluster["r2"]
    with connect(slow.url) as db, db.snapshot() as snap:
        since = len(slow.requests)
        slow.delays["POST /query"] = 1.0
        assert snap.read("u") == ROWS
    assert set(paths(slow, since)[1:-1]) == {"/healthz"}
    assert other.count("POST /query") == 0


def test_where_all_agents_are_slow_they_are_waited_for(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None shows in time that it lives: each is given up once, then the first one is waited for."""
    monkeypatch.setattr("tidelock.client.agents.transport.SHOW_S", 0.01)
    fake_cluster.add_table("u", ROWS)
    with connect(fake_cluster["r1"].url) as db, db.snapshot() as snap:
        for agent in fake_cluster.agents.values():
            agent.delays |= {"POST /query": 1.0, "GET /healthz": 0.3}
        assert snap.read("u") == ROWS
    assert [agent.count("POST /query") for agent in fake_cluster.agents.values()] == [2, 1, 1]


def test_a_frozen_agent_is_not_asked_again_before_it_lives(fake_cluster: FakeCluster) -> None:
    """However long ago it was: looking after it is not the work of a request. It has to serve, too."""
    frozen = fake_cluster["r1"]
    with connect(frozen.url) as db:
        object.__setattr__(db._connection.transport.timeouts, "suspect_s", 0.0)
        freeze(frozen)
        since = len(frozen.requests)
        for _ in range(5):
            assert db.begin(fresh=True).holder == "r2"
        assert paths(frozen, since) == ["/transactions", "/healthz"]
        frozen._plans.clear()
        frozen.plan("GET /status", NotCommittedError("it starts"))
        eventually(lambda: db.begin(fresh=True).holder == "r1")


def test_an_agent_that_was_frozen_is_not_asked_before_it_has_caught_up(fake_cluster: FakeCluster) -> None:
    """It serves again, but lacks what this client has committed: a read of it would wait for that."""
    frozen = fake_cluster["r1"]
    fake_cluster.add_table("u", ROWS)
    with connect(frozen.url) as db:
        object.__setattr__(db._connection.transport.timeouts, "suspect_s", 0.0)
        db.insert("u", ROWS)
        frozen.plan("POST /transactions", Fault.LOST_REQUEST)
        frozen.lag = 1
        looks = frozen.count("GET /status")
        while frozen.count("GET /status") < looks + 3:
            assert db.begin(fresh=True).holder == "r2"
        frozen.lag = 0
        eventually(lambda: db.begin(fresh=True).holder == "r1")


def test_a_client_of_one_replica_does_not_look(fake_cluster: FakeCluster) -> None:
    """It can go nowhere else, so it waits: an agent that was frozen for a moment answers in the end."""
    fake_cluster.add_table("u", ROWS)
    only = fake_cluster["r1"]
    with connect(only.url, replica="r1") as db, db.snapshot() as snap:
        only.delays["POST /query"] = 0.5
        only.plan("GET /healthz", Fault.SILENCE)
        assert snap.read("u") == ROWS
    assert "/healthz" not in paths(only)


@pytest.mark.slow
def test_a_program_with_two_addresses_starts_while_one_is_frozen(fake_cluster: FakeCluster) -> None:
    """The first address is given up as soon as it shows no life."""
    freeze(fake_cluster["r1"])
    with connect([fake_cluster["r1"].url, fake_cluster["r2"].url]) as db:
        assert db.begin(fresh=True).holder == "r2"
    asked = [request.path for request in fake_cluster["r1"].requests]
    assert asked[:2] == ["/status", "/healthz"]
