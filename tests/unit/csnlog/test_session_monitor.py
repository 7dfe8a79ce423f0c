"""The pieces between kazoo's thread and the event loop: clock, inbox, places of requests, handshake."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator

import pytest

from tests.support.aio import until
from tidelock.csnlog.core.results import Unknown
from tidelock.csnlog.core.store import LinkState
from tidelock.csnlog.zookeeper import session_monitor
from tidelock.csnlog.zookeeper.kazoo_bridge import AsyncReply, HandshakeSocket, LoopQueue
from tidelock.csnlog.zookeeper.session_monitor import ConnectBackoff, InFlight, SessionClock, SessionMonitor


def test_the_deadline_counts_from_when_an_answered_request_was_sent() -> None:
    """The deadline is 2/3 of the session timeout later; answers to older requests do not move it back."""
    clock = SessionClock(9.0)
    assert clock.deadline_s == float("-inf")
    clock.prove(100.0)
    assert clock.deadline_s == pytest.approx(106.0)
    clock.prove(90.0)
    assert clock.deadline_s == pytest.approx(106.0)
    clock.session_timeout_s = 3.0
    assert clock.deadline_s == pytest.approx(102.0)


def test_an_idle_session_is_probed_well_before_its_deadline() -> None:
    """After a quarter of the timeout, so that several probes fit before the deadline."""
    clock = SessionClock(8.0)
    clock.prove(100.0)
    assert not clock.idle(101.9)
    assert clock.idle(102.0)
    assert clock.deadline_s > 102.0 + 2.0


def test_an_attempt_to_connect_is_short_until_servers_turn_out_to_be_slow() -> None:
    """An attempt never takes longer than the session timeout, and the first answer makes it short again."""
    patience = ConnectBackoff(SessionClock(12.0))
    attempts = []
    for _ in range(6):
        attempts.append(patience.attempt_s)
        patience.ran_out()
    patience.answered()
    assert [*attempts, patience.attempt_s] == [2.0, 4.0, 8.0, 12.0, 12.0, 12.0, 2.0]


async def test_the_inbox_keeps_the_order_of_each_thread_and_loses_nothing() -> None:
    """Thousands of posts from several threads at once, each thread's in its order."""
    inbox = LoopQueue()
    received: list[tuple[int, int]] = []

    def post(poster: int) -> None:
        for n in range(2000):
            inbox.post(lambda *item: received.append(item), poster, n)

    threads = [threading.Thread(target=post, args=(poster,)) for poster in range(4)]
    for thread in threads:
        thread.start()
    await until(lambda: len(received) == 8000)
    for thread in threads:
        thread.join()
    for poster in range(4):
        assert [n for sender, n in received if sender == poster] == list(range(2000))


def test_posting_to_a_closed_loop_is_no_error() -> None:
    """A post to a closed loop is ignored, since kazoo's thread may outlive the loop for a moment."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:

        async def make() -> LoopQueue:
            return LoopQueue()

        inbox = loop.run_until_complete(make())
    inbox.post(lambda: None)


def reply() -> AsyncReply:
    """A request that was sent just now."""
    return AsyncReply(inbox=LoopQueue(), answered=lambda *_: None, proved=lambda _: None)


async def test_there_are_only_so_many_places() -> None:
    """The next request waits until one is answered; a place given back unused counts too."""
    flights = InFlight(limit=2, timeout_s=10.0)
    first, second = reply(), reply()
    for item in (first, second):
        await flights.place()
        flights.add(item)
    waiting = asyncio.create_task(flights.place())
    await asyncio.sleep(0)
    assert not waiting.done()
    flights.answer(first, "answer")
    await waiting
    assert await first.future == "answer"
    flights.leave()
    await flights.place()
    assert len(flights) == 1


async def test_waiting_for_a_place_has_the_bound_of_a_request() -> None:
    """A caller that cannot be served in time is refused; nothing was sent for it."""
    flights = InFlight(limit=1, timeout_s=0.01)
    assert await flights.place()
    assert not await flights.place()
    flights.leave()
    assert await flights.place()


async def test_an_abandoned_request_is_unknown_and_its_late_answer_finds_nobody() -> None:
    """An abandoned request is Unknown, its late answer is dropped, and its place is free again."""
    flights = InFlight(limit=1, timeout_s=10.0)
    await flights.place()
    item = reply()
    flights.add(item)
    flights.abandon("gone")
    assert await item.future == Unknown("gone")
    await flights.place()
    flights.answer(item, "late")
    waiting = asyncio.create_task(flights.place())
    await asyncio.sleep(0)
    assert not waiting.done(), "the late answer has freed a place that is not its own"
    flights.leave()
    await waiting


async def test_a_request_that_timed_out_keeps_its_place_until_it_is_answered() -> None:
    """A request that timed out is still on its way, so it keeps its place; younger ones wait."""
    flights = InFlight(limit=2, timeout_s=10.0)
    old, young = reply(), reply()
    young.sent_s = old.sent_s + 5.0
    for item in (old, young):
        await flights.place()
        flights.add(item)
    flights.expire(old.sent_s + 9.9)
    assert not old.future.done()
    flights.expire(old.sent_s + 10.0)
    assert await old.future == Unknown("no answer within 10 s")
    assert not young.future.done()
    assert len(flights) == 2
    flights.answer(old, "late")
    assert len(flights) == 1


async def test_a_cancelled_caller_is_left_alone() -> None:
    """Answer, timeout and abandonment have no effect on a cancelled caller."""
    flights = InFlight(limit=1, timeout_s=0.0)
    answered, abandoned = reply(), reply()
    for item in (answered, abandoned):
        await flights.place()
        flights.add(item)
        item.future.cancel()
        flights.expire(item.sent_s + 1)
        if item is answered:
            flights.answer(item, "answer")
        else:
            flights.abandon("gone")
        assert item.future.cancelled()


@pytest.mark.parametrize("chunk", [1, 3, 4, 37])
def test_the_session_timeout_is_read_out_of_the_first_answer(chunk: int) -> None:
    """The timeout is found in any division of the bytes; all bytes are passed on unchanged."""
    noted: list[float] = []
    left, right = socket.socketpair()
    with right:
        answer = struct.pack("!iiiqi16s?", 37, 0, 4500, 77, 16, bytes(16), False)
        later = struct.pack("!iii", 8, 0, 9999)
        with HandshakeSocket(left, noted.append) as connection:
            right.sendall(answer + later)
            received = b""
            while len(received) < len(answer + later):
                received += connection.recv(chunk)
    assert received == answer + later
    assert noted == [4.5]


class Clock:
    """A clock that a test sets, instead of the module `time`."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        """Return the time that was set."""
        return self.now_s


class Wire:
    """A connection that a test controls, and the keeper's actions on it."""

    def __init__(self, clock: SessionClock) -> None:
        self.up = True
        self.cuts = 0
        self.probes = 0
        self.in_flight = InFlight(limit=5, timeout_s=1000.0)
        self.keeper = SessionMonitor(
            clock=clock, in_flight=self.in_flight, up=lambda: self.up, cut=self._cut, probe=self._probe
        )
        self.told: list[tuple[LinkState, int]] = []
        self.keeper.on_change(lambda: self.told.append((self.keeper.link, self.keeper.session)))

    def _cut(self) -> None:
        self.cuts += 1

    def _probe(self) -> None:
        self.probes += 1


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the time of the keeper's clock."""
    clock = Clock()
    monkeypatch.setattr(session_monitor, "time", clock)
    return clock


@pytest.fixture
async def wire(now: Clock) -> AsyncIterator[Wire]:
    """A link that has just come up, with a session timeout of 9 s."""
    session_clock = SessionClock(9.0)
    session_clock.prove(now.now_s)
    wire = Wire(session_clock)
    wire.keeper.came_up(7)
    yield wire
    wire.keeper.close()


async def test_the_link_ends_at_its_deadline_before_anybody_looks(now: Clock, wire: Wire) -> None:
    """The clock decides at the moment of the question; the connection is cut at the next check."""
    assert (wire.keeper.link, wire.told) == (LinkState.CONNECTED, [(LinkState.CONNECTED, 7)])
    now.now_s += 5.9
    links = [wire.keeper.link]
    now.now_s += 0.2
    links.append(wire.keeper.link)
    assert links == [LinkState.CONNECTED, LinkState.SUSPENDED]
    wire.keeper.tick()
    assert (wire.cuts, wire.told[-1]) == (1, (LinkState.SUSPENDED, 7))


async def test_a_cut_link_is_not_believed_in_until_it_comes_up_again(now: Clock, wire: Wire) -> None:
    """A late answer over the old connection proves nothing about the new one."""
    now.now_s += 6.1
    wire.keeper.tick()
    wire.keeper.clock.prove(now.now_s)
    links = [wire.keeper.link]
    wire.keeper.came_up(8)
    links.append(wire.keeper.link)
    assert links == [LinkState.SUSPENDED, LinkState.CONNECTED]
    assert wire.told == [(LinkState.CONNECTED, 7), (LinkState.SUSPENDED, 7), (LinkState.CONNECTED, 8)]


async def test_requests_on_their_way_end_with_the_link(now: Clock, wire: Wire) -> None:
    """At the deadline their callers get Unknown; no caller waits for a server that may have ended."""
    waiting = reply()
    assert await wire.in_flight.place()
    wire.in_flight.add(waiting)
    now.now_s += 6.1
    wire.keeper.tick()
    assert isinstance(await waiting.future, Unknown)


async def test_an_idle_link_is_probed_and_a_busy_one_is_not(now: Clock, wire: Wire) -> None:
    """An idle link is probed; on a busy one the request under way is the probe."""
    wire.keeper.tick()
    assert wire.probes == 0
    now.now_s += 2.3
    wire.keeper.tick()
    assert wire.probes == 1
    assert await wire.in_flight.place()
    wire.in_flight.add(reply())
    wire.keeper.tick()
    assert wire.probes == 1


async def test_a_lost_connection_is_told_once(wire: Wire) -> None:
    """Listeners are notified of changes, not of repetitions; the link is down from the moment of the loss."""
    wire.up = False
    assert wire.keeper.link is LinkState.SUSPENDED
    wire.keeper.went_down()
    wire.keeper.went_down()
    wire.keeper.tick()
    assert wire.told == [(LinkState.CONNECTED, 7), (LinkState.SUSPENDED, 7)]
    assert wire.cuts == 0


async def test_a_closed_link_does_not_come_up(wire: Wire) -> None:
    """A report of kazoo after the end has no effect."""
    wire.keeper.close()
    wire.keeper.came_up(9)
    assert (wire.keeper.link, wire.keeper.session) == (LinkState.SUSPENDED, 7)
