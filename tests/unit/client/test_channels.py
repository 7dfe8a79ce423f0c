"""Channels of a client: when they are opened, what a lost answer is, and that none is left open."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.support.replicas.channel_server import ChannelServer
from tests.support.waiting import eventually
from tidelock.client.agents.channel import Channels, _Channel
from tidelock.client.agents.plain_http import LostError, NotSentError, PlainHttp
from tidelock.wire import channel as wire
from tidelock.wire.channel import BODY_BYTES_MAX

WAIT_S: Final = 20.0


@pytest.fixture
def server() -> Iterator[ChannelServer]:
    """An agent."""
    with ChannelServer() as made:
        yield made


def channels_of(connect_s: float = 5.0) -> Channels:
    """Return the channels of a client."""
    headers = {"Authorization": "Bearer s3"}
    return Channels(PlainHttp("http", headers, connect_s, 30.0), "/api/v1", headers, connect_s)


@pytest.fixture
def channels() -> Iterator[Channels]:
    """The channels of a client."""
    made = channels_of()
    yield made
    made.close()


def post(channels: Channels, server: ChannelServer, body: bytes = b"x", read_s: float = WAIT_S) -> bytes:
    """Send a request; return the body of its answer."""
    status, answer = channels.post(server.address, "/echo", body, content_type="a/b", read_s=read_s)
    assert status == 200
    return answer


def test_the_first_request_goes_over_http_and_those_behind_it_over_one_channel(
    channels: Channels, server: ChannelServer
) -> None:
    """The channel is opened with the secret, and kept."""
    assert [post(channels, server, bytes([n])) for n in range(5)] == [bytes([n]) for n in range(5)]
    assert (server.http, server.opened, len(server.asked)) == (1, 1, 4)
    assert server.asked[0].target == "/echo"
    assert server.headers == ["Bearer s3"]


def test_an_agent_that_opens_no_channel_is_asked_for_one_from_time_to_time(
    channels: Channels, server: ChannelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests go over HTTP until it opens one."""
    server.opens = False
    for _ in range(3):
        post(channels, server)
    server.opens = True
    post(channels, server)
    assert (server.http, server.opened) == (4, 0)
    channels._refused.clear()  # its time is over
    server.opens = False
    monkeypatch.setattr(wire, "REFUSED_S", 0.0)
    post(channels, server)
    server.opens = True
    post(channels, server)
    assert (server.http, server.opened) == (5, 1)


def test_a_body_that_is_too_large_for_a_message_goes_over_http(
    channels: Channels, server: ChannelServer
) -> None:
    """The largest one of a message does not."""
    post(channels, server)
    assert len(post(channels, server, bytes(BODY_BYTES_MAX))) == BODY_BYTES_MAX
    assert len(post(channels, server, bytes(BODY_BYTES_MAX + 1))) == BODY_BYTES_MAX + 1
    assert (server.http, len(server.asked)) == (2, 1)


def test_an_answer_that_is_lost_is_a_doubt_and_the_next_request_gets_another_channel(
    channels: Channels, server: ChannelServer
) -> None:
    """The agent may have carried out what it has read."""
    post(channels, server)
    post(channels, server)
    server.hold()
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(post, channels, server)
        eventually(lambda: len(server.asked) == 2)
        server.cut()
        with pytest.raises(LostError):
            asked.result()
    server.release()
    assert post(channels, server) == b"x"
    assert server.opened == 2


def test_an_answer_that_does_not_come_in_time_is_lost(channels: Channels, server: ChannelServer) -> None:
    """Its channel is closed, since the answer may come later."""
    post(channels, server)
    server.hold()
    with pytest.raises(LostError, match="timed out"):
        post(channels, server, read_s=0.2)
    server.release()
    assert [post(channels, server, b"y"), len(server.asked), server.opened] == [b"y", 2, 2]


def test_a_handshake_without_an_answer_has_sent_nothing(server: ChannelServer) -> None:
    """The request may be sent elsewhere."""
    channels = channels_of(connect_s=0.3)
    post(channels, server)
    server.silent = True
    with pytest.raises(NotSentError):
        post(channels, server)
    channels.close()


def test_an_agent_that_is_gone_has_got_nothing(channels: Channels) -> None:
    """Its channel is closed, and another one cannot be opened."""
    with ChannelServer() as server:
        post(channels, server)
        post(channels, server)
        address = server.address
    with pytest.raises(NotSentError):
        channels.post(address, "/echo", b"x", content_type="a/b", read_s=WAIT_S)


def test_a_channel_that_the_agent_has_closed_meanwhile_is_not_used(
    channels: Channels, server: ChannelServer
) -> None:
    """So an agent that was started again costs no doubt."""
    post(channels, server)
    post(channels, server)
    server.cut()
    eventually(lambda: server.live == 0)
    assert [post(channels, server), server.opened] == [b"x", 2]


def test_an_answer_that_comes_with_the_end_of_its_channel_is_an_answer(
    channels: Channels, server: ChannelServer
) -> None:
    """As from an agent that stops. The next request gets another channel."""
    server.farewell = True
    post(channels, server)
    assert [post(channels, server, bytes([n])) for n in range(3)] == [bytes([n]) for n in range(3)]
    assert (server.opened, len(server.asked)) == (3, 3)


def test_a_channel_that_ends_as_soon_as_it_is_open_has_sent_nothing(
    channels: Channels, server: ChannelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from an agent that stops: both come at once to a client that is slow. It may ask another agent."""
    receive = _Channel._receive

    def slow(self: _Channel, deadline: float) -> None:
        time.sleep(0.2)
        receive(self, deadline)

    monkeypatch.setattr(_Channel, "_receive", slow)
    post(channels, server)
    server.leaves = True
    with pytest.raises(NotSentError, match="closed the channel"):
        post(channels, server)
    server.leaves = False
    assert post(channels, server) == b"x"


def test_a_client_that_waits_answers_pings(channels: Channels, server: ChannelServer) -> None:
    """Otherwise the agent would take it for dead."""
    server.ping = True
    post(channels, server)
    assert [post(channels, server), server.opened] == [b"x", 1]
    assert [post(channels, server), len(server.asked)] == [b"x", 2]


def test_answers_that_belong_to_no_request_are_left_alone(channels: Channels, server: ChannelServer) -> None:
    """Each request gets its own."""
    server.strays = 3
    for n in range(4):
        assert post(channels, server, bytes([n])) == bytes([n])


def test_many_threads_use_channels_at_once(channels: Channels, server: ChannelServer) -> None:
    """Each thread gets the answers to its own requests."""
    post(channels, server)

    def run(thread: int) -> bool:
        return all(
            post(channels, server, b"%d %d" % (thread, n)) == b"%d %d" % (thread, n) for n in range(20)
        )

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(run, range(16)))
    assert server.opened <= 16
    assert len(server.asked) == 320


def test_a_client_that_nobody_closes_leaves_no_channel_open(server: ChannelServer) -> None:
    """Its channels are closed with it, without the warning that a socket was forgotten."""
    channels = channels_of()
    post(channels, server)
    post(channels, server)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del channels
        gc.collect()
    assert [str(one.message) for one in warned if one.category is ResourceWarning] == []
    eventually(lambda: server.live == 0)


def test_a_channel_that_is_in_use_while_its_client_closes_is_closed_behind(server: ChannelServer) -> None:
    """The request gets its answer, and nobody keeps the channel after that."""
    channels = channels_of()
    post(channels, server)
    server.hold()
    answers: list[bytes] = []
    thread = threading.Thread(target=lambda: answers.append(post(channels, server)))
    thread.start()
    eventually(lambda: len(server.asked) == 1)
    channels.close()
    server.release()
    thread.join(WAIT_S)
    assert answers == [b"x"]
    eventually(lambda: server.live == 0)


def test_a_child_process_has_its_own_channels(channels: Channels, server: ChannelServer) -> None:
    """The channels that a fork copies are left to the parent."""
    post(channels, server)
    post(channels, server)
    channels._kept.after_fork()
    assert [post(channels, server), server.opened] == [b"x", 2]
