"""The files of docker/ fit together, and fit the agent's settings; no container engine is needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from demo.containers import project
from tests.support.clusters import compose
from tests.support.project import source
from tidelock.replica_agent.config.loading import load
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.testing.owners import LABEL

FIRST = ("r1", "r2", "r3")
REPLICAS = (*FIRST, "r4")
ZOOKEEPERS = ("zookeeper1", "zookeeper2", "zookeeper3")
SPARK = ("spark-master", "spark-worker1", "spark-worker2", "driver")
#: Where the secret lies in a container.
SECRET_FILE = "/run/secrets/tidelock"
SECRET = "0123456789abcdef"

SERVICES = compose.services()


def settings(monkeypatch: pytest.MonkeyPatch, folder: Path, replica: str) -> AgentSettings:
    """The settings of a replica as its container gets them: from the image, from compose, and the secret."""
    environ = {**compose.image_environment(), **SERVICES[replica].environment}
    assert environ["TIDELOCK_SECRET_FILE"] == SECRET_FILE
    (folder / "secret").write_text(f"{SECRET}\n")
    for name, value in {**environ, "TIDELOCK_SECRET_FILE": str(folder / "secret")}.items():
        monkeypatch.setenv(name, value)
    return load([])


@pytest.mark.parametrize("replica", REPLICAS)
def test_settings_of_a_replica(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replica: str) -> None:
    """The agent knows and accepts all its settings, and has a secret and two copies."""
    given = settings(monkeypatch, tmp_path, replica)
    assert given.replica == replica
    assert given.bootstrap == list(FIRST)
    assert given.join is (replica not in FIRST)
    assert SERVICES[replica].profiles == (() if replica in FIRST else (replica,))
    assert (given.copies, given.secret, given.insecure) == (2, SECRET, False)
    names = {*compose.image_environment(), *SERVICES[replica].environment}
    assert {name.removeprefix("TIDELOCK_").lower() for name in names} <= set(AgentSettings.model_fields)


@pytest.mark.parametrize("replica", REPLICAS)
def test_one_address_serves_both_sides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replica: str) -> None:
    """The advertised name is one of the container's on both networks, and the ports are the same outside."""
    given = settings(monkeypatch, tmp_path, replica)
    service = SERVICES[replica]
    assert given.advertise.endswith(".localhost")
    assert service.networks == {"peers": (given.advertise,), "clients": (given.advertise,)}
    assert (given.advertise_api_port, given.advertise_data_port) == (0, 0)
    assert service.published == {port: ("127.0.0.1", port) for port in (given.api_port, given.data_port)}


def test_nothing_is_used_twice() -> None:
    """No two replicas have a port, a name or a volume in common, and no two servers a number."""
    agents = [SERVICES[replica] for replica in REPLICAS]
    ports = [port for agent in agents for _, port in agent.published.values()]
    names = {name for agent in agents for aliases in agent.networks.values() for name in aliases}
    volumes = [volume for name in (*REPLICAS, *ZOOKEEPERS) for volume in SERVICES[name].entry["volumes"]]
    assert len(set(ports)) == 2 * len(agents)
    assert len(names) == len(agents)
    assert len(set(volumes)) == len(volumes)
    assert [SERVICES[name].environment["ZOO_MY_ID"] for name in ZOOKEEPERS] == ["1", "2", "3"]


def test_only_replicas_are_published() -> None:
    """ZooKeeper and Spark, which ask nobody for a password, are not reached from outside."""
    assert [service.name for service in SERVICES.values() if service.published] == [*REPLICAS]


def test_only_agents_are_on_both_networks() -> None:
    """ZooKeeper is with the peers, Spark with the clients, and only agents are on both networks."""
    assert {*SERVICES} == {*ZOOKEEPERS, *REPLICAS, *SPARK}
    assert {name for name in SERVICES if [*SERVICES[name].networks] == ["peers"]} == {*ZOOKEEPERS}
    assert {name for name in SERVICES if [*SERVICES[name].networks] == ["clients"]} == {*SPARK}
    assert compose.file()["networks"]["peers"]["internal"] is True


def test_the_ensemble_is_the_one_that_agents_know() -> None:
    """Each server has the list of all servers, and the agents' connect string names the same ones."""
    lists = {SERVICES[name].environment["ZOO_SERVERS"] for name in ZOOKEEPERS}
    assert len(lists) == 1
    servers = dict(re.findall(r"server\.(\d)=(\w+):2888:3888;2181", lists.pop()))
    assert servers == {SERVICES[name].environment["ZOO_MY_ID"]: name for name in ZOOKEEPERS}
    for replica in REPLICAS:
        hosts, _, root = SERVICES[replica].environment["TIDELOCK_ZK"].partition("/")
        assert (hosts.split(","), root) == ([f"{name}:2181" for name in ZOOKEEPERS], "tidelock")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_limits_and_no_rights(name: str) -> None:
    """Each service has bounds, comes back after a crash, and has no rights; /data and /tmp are written."""
    entry = SERVICES[name].entry
    assert {"mem_limit", "cpus", "pids_limit", "labels"} <= set(entry)
    assert (entry["restart"], entry["init"], entry["cap_drop"]) == ("unless-stopped", True, ["ALL"])
    assert entry["security_opt"] == ["no-new-privileges:true"]
    if name in ZOOKEEPERS:
        assert entry["user"] == "zookeeper"
        assert "forceSync=yes" in SERVICES[name].environment["ZOO_CFG_EXTRA"]
    else:
        assert entry["read_only"] is True
        assert [mount.partition(":")[0] for mount in entry["tmpfs"]] == ["/tmp"]  # noqa: S108


def test_the_start_is_ordered_by_health() -> None:
    """Agents wait for all servers, workers for the master, and the driver for agents and workers."""
    waits = {
        name: set(service.entry.get("depends_on", {}))
        for name, service in SERVICES.items()
        if name not in ZOOKEEPERS
    }
    assert waits == {
        **{replica: {*ZOOKEEPERS} for replica in REPLICAS},
        "spark-master": set(),
        "spark-worker1": {"spark-master"},
        "spark-worker2": {"spark-master"},
        "driver": {*FIRST, "spark-worker1", "spark-worker2"},
    }
    conditions = [
        one["condition"]
        for service in SERVICES.values()
        for one in service.entry.get("depends_on", {}).values()
    ]
    assert set(conditions) == {"service_healthy"}
    checked = {name for name, service in SERVICES.items() if "healthcheck" in service.entry}
    # An agent's check is in its image. Nobody waits for the driver.
    assert checked == {*ZOOKEEPERS, *SPARK} - {"driver"}


def test_all_that_is_made_has_the_label_of_its_owner() -> None:
    """Services, networks and volumes carry it, with the value that the demo and the tests give."""
    tree = compose.file({project.OWNER_VARIABLE: "somebody"})
    made: list[dict[str, Any]] = [
        *tree["services"].values(),
        *tree["networks"].values(),
        *tree["volumes"].values(),
    ]
    assert all(one["labels"] == {LABEL: "somebody"} for one in made)


def test_the_build_context_holds_what_is_copied() -> None:
    """.dockerignore lets in exactly what the Dockerfile copies, and that is every package."""
    ignored = (source.ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    let_in = {name.removeprefix("!") for name in ignored if name.startswith("!")}
    dockerfile = compose.DOCKERFILE.read_text(encoding="utf-8")
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, flags=re.MULTILINE)
    assert let_in == {name for names in copies for name in names.split()}
    assert {*source.PACKAGES, *source.ENTRIES, "demo", "workloads"} < let_in


def test_every_build_names_a_stage_of_the_dockerfile() -> None:
    """The target of each service's build is a stage, and so is that of the demo's driver."""
    stages = set(
        re.findall(r"^FROM \S+ AS (\S+)$", compose.DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    )
    targets = {service.entry["build"]["target"] for service in SERVICES.values() if "build" in service.entry}
    assert targets == {"agent", "spark"}
    assert {*targets, "demo"} <= stages
