"""Long waits are logged while they last: with what is waited for, at which agent, and for how long still."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.support.replicas.fake_agent import FakeCluster
from tests.support.replicas.fake_http import Fault
from tests.support.waiting import eventually
from tidelock.client import connect
from tidelock.client.agents.waits import Waits
from tidelock.errors import CommitUnknownError, TidelockError, UnavailableError

LOGGER = "tidelock.client.waits"


class Waiting:
    """A call that runs in a thread of its own until the test lets it end."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=call, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the call has ended."""
        self._thread.join(30)
        assert not self._thread.is_alive()


def texts(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    """Return the lines about waits of a level."""
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_a_statement_without_a_replica_says_what_it_waits_for(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """All agents are down: the client logs what it repeats, until when, and why, before it gives up."""
    with connect(fake_cluster["r1"].url, timeout_s=3.0, wait_log_s=0.2) as db:
        for agent in fake_cluster.agents.values():
            agent.stop()
        with caplog.at_level(logging.INFO, LOGGER), pytest.raises(UnavailableError, match="start the agents"):
            db.insert("t", pa.table({"k": [1]}))
    first, *_ = texts(caplog)
    assert "an autocommit statement (timeout_s=3), repeated for" in first
    assert "refused" in first


def test_a_wait_is_told_without_being_asked_for(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The default of wait_log_s is 2 s, as docs say: a wait that ends after 4 s has a line."""
    with connect(fake_cluster["r1"].url, timeout_s=4.0) as db:
        for agent in fake_cluster.agents.values():
            agent.stop()
        with caplog.at_level(logging.INFO, LOGGER), pytest.raises(UnavailableError):
            db.insert("t", pa.table({"k": [1]}))
    assert "an autocommit statement (timeout_s=4)" in texts(caplog)[0]


def test_a_commit_says_which_outcome_it_asks_for(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The home is silent in the commit: the line names the transaction, the home and the request."""
    with connect(fake_cluster["r1"].url, timeout_s=3.0, wait_log_s=0.2) as db:
        tx = db.begin(fresh=True)
        fake_cluster["r1"].plan("POST /transactions/.*/commit", *[Fault.SILENCE] * 100)
        with caplog.at_level(logging.INFO, LOGGER), pytest.raises(CommitUnknownError):
            tx.commit()
    assert any(f"POST /transactions/{tx.tid}/commit at " in line for line in texts(caplog))


def test_long_work_of_an_agent_is_no_warning(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """An insert may take long, so its line is information only."""
    with connect(fake_cluster["r1"].url, timeout_s=1.0, wait_log_s=0.2) as db:
        tx = db.begin(fresh=True)
        fake_cluster["r1"].plan("POST /transactions/.*/rows/.*", Fault.SILENCE)
        with caplog.at_level(logging.INFO, LOGGER), pytest.raises(TidelockError):
            tx.insert("t", pa.table({"k": [1]}))
    assert any("/rows/t at " in line for line in texts(caplog, logging.INFO))
    assert texts(caplog) == []


def test_nested_waits_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The outer wait tells the purpose, the inner one the agent; the line comes again when it lasts."""
    waits, ready = Waits(0.02), threading.Event()

    def wait() -> None:
        with waits.during(lambda: "the outcome"), waits.during(lambda: "GET /outcomes at r2"):
            ready.wait(30)

    with caplog.at_level(logging.INFO, LOGGER):
        thread = Waiting(wait)
        eventually(lambda: len(texts(caplog)) > 1)
        ready.set()
        thread.join()
    assert all(line.endswith(" s now: the outcome: GET /outcomes at r2") for line in texts(caplog))
    assert waits._running == {}
