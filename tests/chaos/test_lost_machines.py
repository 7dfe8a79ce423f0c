"""A machine that loses its network in the middle of a request: its client does not wait for the answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from urllib.parse import urlsplit

import pytest

from tests.support.clusters.cluster import QUICK
from tests.support.faults import ability
from tidelock.client.agents.transport import Timeouts, Transport
from tidelock.errors import NoAnswerError
from tidelock.testing import Cluster, commands
from tidelock.wire.cluster import StatusAnswer

#: Times of the tests, in seconds: until a machine counts as gone, and for an answer.
DEAD_S, ANSWER_S = 3.0, 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One replica with a network of its own."""
    ability.require(commands.lack())
    folder = tmp_path_factory.mktemp("machines")
    with Cluster.processes(folder, replicas=1, copies=1, settings=QUICK, isolated=True) as made:
        yield made


@pytest.mark.parametrize("way", ["urllib3", "channel"])
@pytest.mark.slow
def test_a_request_ends_when_the_machine_is_gone(cluster: Cluster, way: str) -> None:
    """A frozen agent on a machine that is up is waited for; one whose machine is gone is not."""
    [replica] = cluster.replicas
    node, address = cluster.node(replica), urlsplit(cluster.url(replica)).netloc
    transport = Transport(
        scheme="http",
        token=cluster.secret,
        timeouts=Timeouts(answer_s=ANSWER_S, dead_s=DEAD_S, wait_log_s=60.0),
    )

    def ask() -> object:
        if way == "urllib3":
            return transport.call(address, "GET", "/status", answer=StatusAnswer)
        return transport.write(address, "/write", b"", answer=StatusAnswer, timeout_s=ANSWER_S)

    transport.call(address, "GET", "/status", answer=StatusAnswer)
    node.pause()
    try:
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(ask)
            with pytest.raises(NotYetError):
                asked.result(2 * DEAD_S)
            begun = time.monotonic()
            cluster.network.isolate(replica)
            error = asked.exception(ANSWER_S / 2)
            took_s = time.monotonic() - begun
        assert isinstance(error, NoAnswerError), error
        assert took_s < ANSWER_S / 4
    finally:
        cluster.network.heal()
        node.resume()
        node.wait_ready()
