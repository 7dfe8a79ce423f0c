"""Trouble with ZooKeeper that lasts, under load: no quorum, bad connections, servers that lag or go.

The load is that of tests/support/histories: its history is judged as a whole behind each fault.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory, start_through
from tests.support.faults.proxy import Direction, Proxy
from tests.support.histories.evidence import alive, read_log, verify
from tests.support.histories.workload import Workload
from tests.support.waiting import eventually
from tests.support.zookeeper.servers import READY_TIMEOUT_S
from tidelock import processes
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import TidelockError, UnavailableError
from tidelock.zookeeper import LocalZooKeeper, ZooKeeperServer
from workloads.agents import ask
from workloads.history import CallEnd

REPLICAS: Final = ("r1", "r2", "r3")
SETTINGS: Final = {**QUICK, "session_timeout_s": 3, "request_timeout_s": 3}
WRITERS: Final = (*REPLICAS, *REPLICAS)
ROW: Final = pa.table({"k": [1]})
#: How long the quorum is away, and how often a connection is cut, once in a second.
MINUTE_S: Final = 60
#: Cuts after which everything that a connection needs has been made at least once.
WARM_CUTS: Final = 5
#: Threads and files that come and go with requests; every cut may leave none.
SLACK: Final = 10
ROUNDS: Final = 4
#: States of transactions that have not ended.
OPEN: Final = ("open", "failed", "sealed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def state(local: LocalCluster, replica: str) -> str:
    """Return the state that an agent reports."""
    return str(ask(local, replica, "/status")["state"])


def in_state(local: LocalCluster, name: str, *replicas: str) -> None:
    """Wait until each of these agents reports a state."""
    for replica in replicas:
        eventually(lambda replica=replica: state(local, replica) == name, what=f"{replica} {name}")  # type: ignore[misc]


@contextlib.contextmanager
def behind_proxies(
    cluster: ClusterFactory, targets: dict[str, str]
) -> Iterator[tuple[LocalCluster, dict[str, Proxy]]]:
    """Run three replicas; each of those in `targets` reaches its ZooKeeper through a proxy of its own."""
    with contextlib.ExitStack() as stack:
        proxies = {replica: stack.enter_context(Proxy(target)) for replica, target in targets.items()}
        local = cluster(settings=SETTINGS, start=False)
        for replica, proxy in proxies.items():
            start_through(local, replica, proxy.address)
        local.up()
        yield local, proxies


@pytest.mark.scenario("S31")
def test_without_a_quorum_for_a_minute(
    cluster: ClusterFactory, ensemble: LocalZooKeeper, tmp_path: Path
) -> None:
    """Writers are refused or told "unknown" and ask again, what they leave is bounded, pins are read."""
    local = cluster(zk=ensemble.connect_string, settings=SETTINGS)
    with Workload(local, tmp_path, "quorum", writers=WRITERS, timeout_s=4.0) as load:
        load.more_commits(5, *REPLICAS)
        with local.connect("r1") as db, db.snapshot() as snap:
            rows = snap.read(load.tables[0]).num_rows
            for server in ensemble.servers[:2]:
                server.kill()
            in_state(local, "suspended", *REPLICAS)
            acknowledged = load.commits()
            threads = {replica: agent(local, replica).num_threads() for replica in REPLICAS}
            until = time.monotonic() + MINUTE_S
            while time.monotonic() < until:
                assert snap.read(load.tables[0]).num_rows == rows
                with pytest.raises(UnavailableError, match="suspended"):
                    db.begin(fresh=True)
            assert load.commits() == acknowledged
            for replica in REPLICAS:
                # One transaction of each client at most: nothing collects while nothing can be committed.
                assert open_transactions(local, replica) <= len(WRITERS)
                assert agent(local, replica).num_threads() <= threads[replica] + SLACK
            ensemble.start(timeout_s=READY_TIMEOUT_S)
        load.more_commits(5, *REPLICAS)
    history = verify(load, commits=30)
    assert len(history.ended(CallEnd.FAIL)) + len(history.ended(CallEnd.INFO)) > len(WRITERS)


def agent(local: LocalCluster, replica: str) -> psutil.Process:
    """Return the process of an agent."""
    pid = local.pid(replica)
    assert pid is not None
    return psutil.Process(pid)


def open_transactions(local: LocalCluster, replica: str) -> int:
    """Return how many transactions of a home have not ended."""
    with local.connect(replica) as db:
        return sum(found["state"] in OPEN for found in db.transactions())


@pytest.mark.scenario("S33")
def test_a_connection_that_flaps_for_a_minute(
    cluster: ClusterFactory, zookeeper: str, tmp_path: Path
) -> None:
    """Every second it is cut, under load: no doubles, and neither threads nor open files grow."""
    with behind_proxies(cluster, {"r1": zookeeper}) as (local, proxies):
        with Workload(local, tmp_path, "flap", writers=WRITERS, readers=("r1",)) as load:
            load.more_commits(5, *REPLICAS)
            flap(proxies["r1"], WARM_CUTS)
            threads, files = in_use(local)
            flap(proxies["r1"], MINUTE_S)
            assert proxies["r1"].counters.cut >= MINUTE_S // 2
            load.more_commits(5, *REPLICAS)

            def no_more() -> bool:
                now = in_use(local)
                return now[0] <= threads + SLACK and now[1] <= files + SLACK

            eventually(no_more, what=f"about {threads} threads and {files} files again")
        verify(load, commits=40)


def flap(proxy: Proxy, times: int) -> None:
    """Cut a connection once in a second."""
    pause = threading.Event()
    for _ in range(times):
        proxy.cut()
        pause.wait(1)


def in_use(local: LocalCluster) -> tuple[int, int]:
    """Return the threads and the open files of r1's agent."""
    process = agent(local, "r1")
    return process.num_threads(), process.num_fds()


@pytest.mark.scenario("S32")
@pytest.mark.parametrize("direction", Direction)
def test_a_link_of_one_direction(
    cluster: ClusterFactory, zookeeper: str, tmp_path: Path, direction: Direction
) -> None:
    """Requests arrive and answers do not, or the reverse: unknown or refused, and decided in the end."""
    with behind_proxies(cluster, {"r1": zookeeper}) as (local, proxies):
        with Workload(local, tmp_path, "oneway", writers=(*WRITERS, "r1"), timeout_s=4.0) as load:
            for _ in range(3):
                load.more_commits(5, *REPLICAS)
                proxies["r1"].black_hole(direction)
                in_state(local, "suspended", "r1")
                eventually(lambda: not alive(local, "r2", "r1"), what="the end of r1's session")
                load.more_commits(5, "r2", "r3")
                proxies["r1"].heal()
            load.more_commits(5, *REPLICAS)
        history = verify(load, commits=60)
    assert history.ended(CallEnd.INFO) + history.ended(CallEnd.FAIL)


@pytest.mark.scenario("S30")
def test_a_rolling_restart_of_zookeeper(
    cluster: ClusterFactory, ensemble: LocalZooKeeper, tmp_path: Path
) -> None:
    """Each server in turn, the leader among them, stops in order and comes back; commits go on behind it."""
    local = cluster(zk=ensemble.connect_string, settings=SETTINGS)
    with Workload(local, tmp_path, "roll", writers=(*WRITERS, None), readers=("r2",)) as load:
        for server in ensemble.servers:
            load.more_commits(5, *REPLICAS)
            server.stop()
            assert not server.alive
            load.more_commits(5, *REPLICAS)
            ensemble.start(timeout_s=READY_TIMEOUT_S)
        load.more_commits(5, *REPLICAS)
    verify(load, commits=90)


@pytest.mark.scenario("S36", "S29")
def test_strict_reads_while_the_leader_changes(cluster: ClusterFactory, ensemble: LocalZooKeeper) -> None:
    """A fresh begin at one replica has what another client has just been told to be committed elsewhere."""
    local = cluster(zk=ensemble.connect_string, settings=SETTINGS)
    with local.connect("r1") as reader, local.connect("r2") as writer:
        writer.create_table("t", ROW.schema)
        for _ in range(2):
            for number in range(20):
                if number == ROUNDS:
                    leader = eventually(ensemble.leader, what="a leader")
                    assert leader is not None
                    leader.kill()
                committed = again(lambda: writer.insert("t", ROW).csn or 0)
                assert again(lambda: fresh(reader)) >= committed
            ensemble.start(timeout_s=READY_TIMEOUT_S)


def again(call: object) -> int:
    """Call until there is an answer, while the servers elect a leader."""
    assert callable(call)

    def answer() -> int:
        with contextlib.suppress(TidelockError):
            return int(call())
        return 0

    return eventually(answer, what="an answer")


def fresh(db: Database) -> int:
    """Return the snapshot of a strict begin of a client that has seen nothing of its own."""
    with db.begin(fresh=True) as tx:
        return tx.snapshot_csn


@pytest.mark.scenario("S28")
def test_a_new_session_at_a_server_that_lags(cluster: ClusterFactory, ensemble: LocalZooKeeper) -> None:
    """r1 comes back at a server that was frozen during the last commits: what it shows never goes back."""
    lagging, *others = sorted(ensemble.servers, key=lambda server: server.mode() == "leader")
    with contextlib.ExitStack() as stack:
        ways = {server.address: stack.enter_context(Proxy(server.address)) for server in ensemble.servers}
        # The others do not know the server that will be frozen: it must be r1 alone that waits for it.
        well = ",".join(server.address for server in others)
        local = cluster(zk=well, settings=SETTINGS, start=False)
        start_through(local, "r1", ",".join(way.address for way in ways.values()))
        local.up()
        with local.connect("r2") as db, stepping(local) as seen:
            db.create_table("t", ROW.schema)
            last = 0
            for _ in range(ROUNDS):
                for server in others:
                    ways[server.address].refuse()
                for way in ways.values():
                    way.cut()
                with frozen(lagging):
                    last = max(db.insert("t", ROW).csn or 0 for _ in range(50))
                    in_state(local, "suspended", "r1")
                    eventually(lambda: not alive(local, "r2", "r1"), what="the end of r1's session")
                eventually(lambda: alive(local, "r2", "r1"), what="a session at the server that lagged")
                with local.connect("r1") as reader:
                    assert again(lambda: fresh(reader)) >= last
                for way in ways.values():
                    way.heal()
            assert len(set(seen)) > ROUNDS
        assert seen == sorted(seen)
        assert read_log(local.zk)[-1].csn >= last


@contextlib.contextmanager
def frozen(server: ZooKeeperServer) -> Iterator[None]:
    """Stop a server inside the block."""
    process = server.process
    assert process is not None
    processes.send(process, signal.SIGSTOP)
    try:
        yield
    finally:
        processes.send(process, signal.SIGCONT)


@contextlib.contextmanager
def stepping(local: LocalCluster) -> Iterator[list[int]]:
    """Note the snapshot CSN of r1 all the time."""
    seen: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.01):
            with contextlib.suppress(TidelockError):
                seen.append(ask(local, "r1", "/status")["snapshot_csn"])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


@pytest.mark.scenario("S82")
def test_connections_go_and_come_back_in_other_orders(
    cluster: ClusterFactory, zookeeper: str, tmp_path: Path, fresh_seed: int
) -> None:
    """Those of a drawn subset stop one by one, in one of three ways, and come back in another order."""
    chosen = random.Random(fresh_seed)
    with behind_proxies(cluster, dict.fromkeys(REPLICAS, zookeeper)) as (local, proxies):
        load = Workload(local, tmp_path, "swizzle", writers=WRITERS, readers=("r1", "r3"), timeout_s=4.0)
        with load:
            for _ in range(2 * ROUNDS):
                load.more_commits(3, *REPLICAS)
                subset = chosen.sample(REPLICAS, chosen.randint(1, len(REPLICAS)))
                for replica in subset:
                    break_off(proxies[replica], chosen)
                    in_state(local, "suspended", replica)
                if len(subset) == 1:  # the others are as many as a commit has copies
                    load.more_commits(3, *(set(REPLICAS) - set(subset)))
                for replica in chosen.sample(subset, len(subset)):
                    proxies[replica].heal()
            load.more_commits(3, *REPLICAS)
        assert all(proxy.counters.connections > 1 for proxy in proxies.values())
        verify(load, commits=40)


def break_off(proxy: Proxy, chosen: random.Random) -> None:
    """End what goes through a proxy: with a reset, in silence, or in silence of one side."""
    ways: Sequence[tuple[Direction, ...]] = (tuple(Direction), (Direction.TO_CLIENT,), ())
    if directions := chosen.choice(ways):
        proxy.black_hole(*directions)
    else:
        proxy.refuse()
        proxy.cut()
