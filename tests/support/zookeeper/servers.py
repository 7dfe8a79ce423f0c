"""Fixtures that give tests a real ZooKeeper, and names in it that no other test uses."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.faults.proxy import Proxy
from tidelock import zookeeper as embedded

#: Short ticks: sessions down to one second, elections in well under a second. Without the second compiler of
#: Java, which takes half of the processor time of a server that lives for a minute.
OPTIONS: Final = embedded.Options(tick_time_ms=500, jvm=("-XX:TieredStopAtLevel=1",))
#: A start takes a second on a quiet machine. Tests share theirs with Spark.
READY_TIMEOUT_S: Final = 60.0


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.LocalZooKeeper]:
    """One server for the whole session. Tests must not stop it; tests that do so use `ensemble`."""
    with running(embedded.create(tmp_path_factory.mktemp("zookeeper"), options=OPTIONS)) as servers:
        yield servers


@pytest.fixture(scope="session")
def zookeeper(zookeeper_server: embedded.LocalZooKeeper) -> str:
    """The connect string, without a root, of the session's ZooKeeper."""
    return zookeeper_server.connect_string


@pytest.fixture
def zk_root() -> str:
    """A root that no other test uses, like `/t-0123456789ab`. It does not exist yet."""
    return f"/t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def zk_connect(zookeeper: str, zk_root: str) -> str:
    """The connect string of the session's ZooKeeper with a root of this test."""
    return f"{zookeeper}{zk_root}"


@pytest.fixture
def zk_proxy(zookeeper: str) -> Iterator[Proxy]:
    """A proxy in front of the session's ZooKeeper: use `zk_proxy.address` instead of `zookeeper`."""
    with Proxy(zookeeper) as proxy:
        yield proxy


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[embedded.LocalZooKeeper]:
    """Three servers of this test alone, which may kill, stop and start them."""
    with running(embedded.create(tmp_path / "ensemble", size=3, options=OPTIONS)) as servers:
        yield servers


@contextlib.contextmanager
def running(servers: embedded.LocalZooKeeper) -> Iterator[embedded.LocalZooKeeper]:
    """Start servers that were set up; they are killed at the end."""
    try:
        servers.start(timeout_s=READY_TIMEOUT_S)
        yield servers
    finally:
        servers.kill()
