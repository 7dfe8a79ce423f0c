"""Channels of real agents: who may open one, what goes over it, and what faults of the network do to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

import pytest

from tests.support.clusters.client_process import ROWS
from tests.support.clusters.cluster import QUICK, ClusterFactory, restored
from tests.support.faults.proxy import Direction, Proxy
from tests.support.faults.refusals import http
from tests.support.waiting import eventually
from tidelock.client import CommitResult, Database, connect
from tidelock.client.agents.transport import Timeouts, Transport
from tidelock.cluster import LocalCluster
from tidelock.errors import AccessDeniedError, UnknownTableError
from tidelock.wire.transactions import CommitAnswer

SECRET: Final = "a shared secret"
HOME: Final = "r1"
LANDING: Final = "lands"
_COUNTED: Final = re.compile(r'^tidelock_channel_requests_total\{side="(\w+)"\} (\S+)$', re.MULTILINE)


@pytest.fixture(scope="module")
def shared(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster with a secret for the module, with two tables and a landing table."""
    made = module_cluster(settings={**QUICK, "secret": SECRET})
    with database(made) as db:
        for table in ("t", "u"):
            db.create_table(table, ROWS.schema)
        db.create_table(LANDING, ROWS.schema, properties={"landing": "on"})
    return made


@pytest.fixture
def local(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster with all replicas up, and nothing left over after the test."""
    with restored(shared):
        yield shared


@pytest.fixture
def proxy(local: LocalCluster) -> Iterator[Proxy]:
    """A network to the home."""
    with Proxy(address_of(local)) as made:
        yield made


def database(local: LocalCluster, *urls: str) -> Database:
    """Return a client of the home, over the network of the test if its URL is given."""
    return connect(urls or [local.url(HOME)], replica=None if urls else HOME, token=SECRET, timeout_s=30.0)


def over(proxy: Proxy, local: LocalCluster) -> Database:
    """Return a client of the home over a proxy."""
    return connect(f"http://{proxy.address}", replica=HOME, token=SECRET, timeout_s=30.0)


def rows(db: Database, *tables: str) -> list[int]:
    """Return the number of rows of tables at one CSN."""
    with db.begin(fresh=True) as tx:
        return [tx.scan(table).count() for table in tables]


def _done(writes: Sequence[Future[CommitResult]], least: int) -> bool:
    return sum(write.done() for write in writes) >= least


def address_of(local: LocalCluster) -> str:
    """Return the address of the home."""
    return local.url(HOME).removeprefix("http://")


def requests_of(local: LocalCluster, replica: str) -> dict[str, float]:
    """Return the requests over channels that an agent has counted, by the side that opened them."""
    headers = {"Authorization": f"Bearer {SECRET}"}
    text = http("GET", f"{local.url(replica)}/metrics", headers=headers).data.decode()
    return {side: float(count) for side, count in _COUNTED.findall(text)}


def test_commits_and_landings_share_channels(local: LocalCluster, proxy: Proxy) -> None:
    """Behind the first request no commit, no landing and no commit of statements is a request of HTTP."""
    with over(proxy, local) as db:
        db.write({"t": ROWS})
        before = rows(db, "t", "u")
        sent = len(proxy.counters.http_requests)
        for _ in range(3):
            db.write({"t": ROWS, "u": ROWS})
        assert db.land(LANDING, ROWS).rows == ROWS.num_rows
        with db.begin() as tx:
            assert tx.tid  # so it begins here, and each statement is a request
            tx.insert("t", ROWS)
        posted = {line.rpartition("/")[2] for line in proxy.counters.http_requests[sent:]}
        assert "GET /api/v1/channel" in proxy.counters.http_requests
        assert not posted & {"commits", "commit", LANDING}
        n = ROWS.num_rows
        assert rows(db, "t", "u") == [before[0] + 4 * n, before[1] + 3 * n]


def test_pushes_go_over_channels(local: LocalCluster) -> None:
    """The peers of a home count its pushes; commits of a client are counted at the home."""
    counted = {replica: requests_of(local, replica) for replica in local.replicas}
    with database(local) as db:
        for _ in range(2):
            db.write({"t": ROWS}, wait="all")
    for replica in local.replicas:
        side = "client" if replica == HOME else "peer"
        assert requests_of(local, replica).get(side, 0) > counted[replica].get(side, 0)


@pytest.mark.parametrize("token", [None, "wrong", "of a transaction"])
def test_a_channel_needs_the_secret(local: LocalCluster, token: str | None) -> None:
    """Without it the client hears the error that HTTP gives, and no channel is opened."""
    counted = requests_of(local, HOME)
    with database(local) as db:
        tx = db.begin()
        shown = tx.token() if token == "of a transaction" else token
        transport = Transport(scheme="http", token=shown, timeouts=Timeouts())
        for _ in range(3):
            with pytest.raises(AccessDeniedError):
                transport.write(address_of(local), "/commits", b"", answer=CommitAnswer, timeout_s=10.0)
        assert list(transport._channels._refused) == [address_of(local)]
        transport.close()
        tx.rollback()
    assert requests_of(local, HOME) == counted


@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("way", ["write", "statements"])
def test_what_is_lost_on_a_channel_counts_once(
    local: LocalCluster, proxy: Proxy, lost: str, way: str
) -> None:
    """The channel breaks before or after the home has got the commit: the rows are there once."""
    with over(proxy, local) as db:
        for _ in range(2):
            db.write({"t": ROWS})
        before = rows(db, "t", "u")
        tx = db.begin()
        if way == "statements":
            assert tx.tid
        tx.insert("t", ROWS)
        tx.insert("u", ROWS)
        (proxy.lose_reply if lost == "reply" else proxy.lose_request)()
        tx.commit()
        assert proxy.counters.lost_replies + proxy.counters.lost_requests == 1
        assert rows(db, "t", "u") == [before[0] + ROWS.num_rows, before[1] + ROWS.num_rows]


def test_threads_of_a_client_lose_their_channels_in_the_middle(local: LocalCluster, proxy: Proxy) -> None:
    """Every acknowledged row is there, and once, however often the network breaks."""
    with over(proxy, local) as db, ThreadPoolExecutor(8) as threads:
        db.write({"t": ROWS})
        before = rows(db, "t")
        writes = [threads.submit(db.write, {"t": ROWS}) for _ in range(120)]
        for count in range(10, 120, 30):
            eventually(partial(_done, writes, count))
            proxy.cut()
        assert len({write.result().csn is None for write in writes}) == 1
        assert rows(db, "t") == [before[0] + 120 * ROWS.num_rows]
        assert proxy.counters.cut > 0


def test_a_channel_that_is_slow_holds_nothing_up(local: LocalCluster, proxy: Proxy) -> None:
    """Requests of other threads go over other channels."""
    with over(proxy, local) as db, database(local) as direct, ThreadPoolExecutor(1) as threads:
        for _ in range(2):
            db.write({"t": ROWS})
        proxy.delay(Direction.TO_SERVER, 1.0)
        slow = threads.submit(db.write, {"t": ROWS})
        direct.write({"t": ROWS})
        assert not slow.done()
        assert slow.result().csn


def test_an_agent_that_is_started_again_costs_no_doubt(local: LocalCluster) -> None:
    """Its channels are closed: the next commit opens another one, and does not fail."""
    with database(local) as db:
        for _ in range(3):
            db.write({"t": ROWS})
        before = rows(db, "t")
        local.stop(HOME)
        local.start(HOME)
        assert db.write({"t": ROWS}).csn
        assert rows(db, "t") == [before[0] + ROWS.num_rows]


def test_an_agent_that_stops_answers_what_it_has_begun(local: LocalCluster) -> None:
    """Commits of many threads while it stops: each is acknowledged and there, or certainly not written."""
    written = 0
    with database(local, *local.urls) as db, ThreadPoolExecutor(8) as threads:
        before = rows(db, "t")
        writes = [threads.submit(db.write, {"t": ROWS}) for _ in range(80)]
        eventually(partial(_done, writes, 10))
        local.stop(HOME)
        for write in writes:
            assert write.result().csn
            written += ROWS.num_rows
        assert rows(db, "t") == [before[0] + written]


def test_errors_over_a_channel_are_those_of_http(local: LocalCluster) -> None:
    """With class, words and details."""
    with database(local) as db, database(local) as fresh:
        for _ in range(2):
            db.write({"t": ROWS})
        told = []
        for one in (fresh, db):  # the first over HTTP, the second over its channel
            with pytest.raises(UnknownTableError) as caught:
                one.write({"nowhere": ROWS})
            told.append((caught.value.message, caught.value.details))
        assert told[0] == told[1]
