"""Fixtures that give tests a cluster of real agents as processes, and end it."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.clusters.forked import ForkedCluster
from tests.support.histories.evidence import nothing_left
from tests.support.zookeeper.servers import READY_TIMEOUT_S
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import TidelockError
from tidelock.zookeeper import LocalZooKeeper
from workloads.agents import ask

#: Makes a cluster and starts it; see `_Factory.__call__` for the options.
ClusterFactory = Callable[..., LocalCluster]
#: Settings with which agents notice failures soon, and react to them soon.
QUICK: Final = {
    "session_timeout_s": 4,
    "commit_timeout_s": 5,
    "undecided_check_s": 0.5,
    "member_refresh_s": 1,
    "progress_interval_s": 0.2,
    "retry_wait_max_s": 0.5,
    "reader_workers": 1,
}
#: Settings of the agents of all tests. Tests damage parts to see who notices; a scrubber would be first.
_OF_ALL: Final = {"check_invariants": True, "scrub_bytes_per_s": 0}
#: Lines of each agent's log that a test's failure shows.
LOG_LINES: Final = 15

_open: list[_Factory] = []


class _Factory:
    """A factory that makes clusters and ends all of them."""

    def __init__(self, folder: Path, zookeeper: LocalZooKeeper) -> None:
        self._folder = folder
        self._zookeeper = zookeeper
        self._made: list[LocalCluster] = []

    def __call__(
        self,
        *,
        replicas: int = 3,
        copies: int | None = None,
        epoch_limit: int | None = None,
        zk: str | None = None,
        own_zookeeper: bool = False,
        settings: Mapping[str, Any] | None = None,
        faults: Mapping[str, str] | None = None,
        environment_of: Mapping[str, Mapping[str, str]] | None = None,
        executed: bool = False,
        start: bool = True,
    ) -> LocalCluster:
        """Return a cluster that runs.

        Args:
            replicas: The number of replicas; their ids are r1, r2, ...
            copies: Durable copies of a commit.
            epoch_limit: Records of an epoch.
            zk: A ZooKeeper (host:port, no root) other than the session's, e.g. a proxy's address.
            own_zookeeper: Start an embedded ZooKeeper for the cluster.
            settings: Settings of all agents, by the names of their fields, besides those of all tests.
            faults: Fault points to arm at the first start (TIDELOCK_FAULTS), by replica.
            environment_of: More environment variables, by replica.
            executed: Execute the programs of agents and workers, as users do, where a test looks at these
                processes. Otherwise they are forked, which is quicker.
            start: Whether to start it.
        """
        root = f"t-{uuid.uuid4().hex[:12]}"
        per_replica = {replica: dict(items) for replica, items in (environment_of or {}).items()}
        for replica, armed in (faults or {}).items():
            per_replica.setdefault(replica, {})["TIDELOCK_FAULTS"] = armed
        kind = LocalCluster if executed else ForkedCluster
        cluster = kind.create(
            self._folder / root,
            replicas=replicas,
            copies=copies,
            zk=None if own_zookeeper else f"{zk or self._zookeeper.connect_string}/{root}",
            epoch_limit=epoch_limit,
            environment={
                f"TIDELOCK_{name.upper()}": str(value)
                for name, value in (_OF_ALL | dict(settings or {})).items()
            },
            environment_of=per_replica,
        )
        self._made.append(cluster)
        if start:
            cluster.up(timeout_s=READY_TIMEOUT_S)
        return cluster

    def last_words(self) -> Iterator[tuple[str, str]]:
        """Return the end of each agent's log, with a title."""
        for cluster in self._made:
            for replica in cluster.replicas:
                log = cluster.log(replica)
                if log.exists():
                    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                    yield f"the last lines of {log}", "\n".join(lines[-LOG_LINES:])

    def close(self) -> None:
        """End all clusters at once."""
        for cluster in self._made:
            for replica in cluster.replicas:
                cluster.kill(replica)
            if servers := cluster.zookeeper:
                servers.kill()


@contextlib.contextmanager
def _factory(folder: Path, zookeeper: LocalZooKeeper) -> Iterator[ClusterFactory]:
    factory = _Factory(folder, zookeeper)
    _open.append(factory)
    try:
        yield factory
    finally:
        _open.remove(factory)
        factory.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last lines of the agents' logs to the report of a failure."""
    report = yield
    if report.failed:
        for factory in _open:
            report.sections += factory.last_words()
    return report


def start_through(cluster: LocalCluster, replica: str, zookeeper: str) -> None:
    """Start one agent whose address of ZooKeeper (host:port) differs from the others' address."""
    root = cluster.zk.partition("/")[2]
    layout = dataclasses.replace(cluster.layout, zk=f"{zookeeper}/{root}")
    other = ForkedCluster(
        cluster.folder, layout, environment=cluster.environment, environment_of=cluster.environment_of
    )
    other.start(replica)


@pytest.fixture
def cluster(tmp_path: Path, zookeeper_server: LocalZooKeeper) -> Iterator[ClusterFactory]:
    """Makes clusters for one test: `cluster(replicas=3, copies=2, epoch_limit=50, faults={"r1": ...})`."""
    with _factory(tmp_path / "clusters", zookeeper_server) as factory:
        yield factory


@pytest.fixture(scope="module")
def module_cluster(
    tmp_path_factory: pytest.TempPathFactory, zookeeper_server: LocalZooKeeper
) -> Iterator[ClusterFactory]:
    """Makes clusters for all tests of a module, which must not damage them."""
    with _factory(tmp_path_factory.mktemp("clusters"), zookeeper_server) as factory:
        yield factory


@pytest.fixture(scope="module")
def sessions(local: LocalCluster) -> Iterator[list[Database]]:
    """A session at each replica of the module's own fixture `local`."""
    found = [local.connect(replica) for replica in local.replicas]
    yield found
    for db in found:
        db.close()


@pytest.fixture(scope="module")
def db(local: LocalCluster) -> Iterator[Database]:
    """A session at r1 of the module's own fixture `local`; a module that needs another has its own."""
    with local.connect("r1") as found:
        yield found


@contextlib.contextmanager
def restored(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Give a cluster to a test; afterwards all replicas are up again, and have nothing left over."""
    yield cluster
    for replica in cluster.replicas:
        cluster.kill(replica, signal.SIGCONT)
    cluster.up()
    for replica in cluster.replicas:
        nothing_left(cluster.data_dir(replica))


def serving_boot(local: LocalCluster, replica: str) -> int:
    """Return the boot that serves; 0 while none does, as while a fenced process is replaced."""
    try:
        status = ask(local, replica, "/status")
    except TidelockError:
        return 0
    return int(status["boot"]) if status["state"] == "serving" else 0
