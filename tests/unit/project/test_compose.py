"""The files of docker/ fit together, and fit the agent's settings; no container engine is needed."""

from __future__ import annotations

import re

import pytest

from tests.support.clusters import compose
from tests.support.project import source
from tidelock.replica_agent.config.loading import load
from tidelock.replica_agent.config.settings import AgentSettings

SECRET = {"TIDELOCK_SECRET": "0123456789abcdef"}
FIRST = ("r1", "r2", "r3")
REPLICAS = (*FIRST, "r4")


def settings(monkeypatch: pytest.MonkeyPatch, replica: str) -> AgentSettings:
    """The settings of a replica as its container gets them: from the image and from compose."""
    environ = {**compose.image_environment(), **compose.services(SECRET)[replica].environment}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return load([])


@pytest.mark.parametrize("replica", REPLICAS)
def test_settings_of_a_replica(monkeypatch: pytest.MonkeyPatch, replica: str) -> None:
    """The agent knows and accepts all its settings, and has a secret and two copies."""
    given = settings(monkeypatch, replica)
    assert given.replica == replica
    assert given.bootstrap == list(FIRST)
    assert given.join is (replica not in FIRST)
    assert compose.services(SECRET)[replica].profiles == (() if replica in FIRST else (replica,))
    assert (given.copies, given.secret, given.insecure) == (2, SECRET["TIDELOCK_SECRET"], False)
    names = {*compose.image_environment(), *compose.services(SECRET)[replica].environment}
    assert {name.removeprefix("TIDELOCK_").lower() for name in names} <= set(AgentSettings.model_fields)


@pytest.mark.parametrize("replica", REPLICAS)
def test_one_address_serves_both_sides(monkeypatch: pytest.MonkeyPatch, replica: str) -> None:
    """The advertised name is one of the container's on the network, and the ports are the same outside."""
    given = settings(monkeypatch, replica)
    service = compose.services(SECRET)[replica]
    assert given.advertise in service.aliases
    assert given.advertise.endswith(".localhost")
    assert (given.advertise_api_port, given.advertise_data_port) == (0, 0)
    assert service.published == {port: ("127.0.0.1", port) for port in (given.api_port, given.data_port)}


def test_nothing_is_used_twice() -> None:
    """No two replicas have a port or a name in common."""
    agents = [compose.services(SECRET)[replica] for replica in REPLICAS]
    ports = [port for agent in agents for _, port in agent.published.values()]
    names = [name for agent in agents for name in agent.aliases]
    assert len(set(ports)) == 2 * len(agents)
    assert len(set(names)) == len(agents)


def test_only_replicas_are_published() -> None:
    """ZooKeeper, which asks nobody for a password, is on the private network only."""
    assert [service.name for service in compose.services(SECRET).values() if service.published] == [*REPLICAS]


def test_a_missing_secret_is_refused() -> None:
    """Without TIDELOCK_SECRET nothing is started, in words that say what to do."""
    with pytest.raises(KeyError, match="TIDELOCK_SECRET: set it"):
        compose.services({})


def test_the_build_context_holds_what_is_copied() -> None:
    """.dockerignore lets in exactly what agent.Dockerfile copies, and that is every package."""
    ignored = (source.ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    let_in = {name.removeprefix("!") for name in ignored if name.startswith("!")}
    dockerfile = compose.DOCKERFILE.read_text(encoding="utf-8")
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, flags=re.MULTILINE)
    assert let_in == {name for names in copies for name in names.split()}
    assert set(source.PACKAGES) < let_in
