"""The containers of tidelock.testing are those of docker/compose.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.clusters import compose
from tidelock.testing import services

SERVICES = compose.services()
UNITS = {"m": 1 << 20, "g": 1 << 30}
#: Every service of a kind is like this one (tests/unit/project/test_compose.py).
KINDS: list[tuple[str, Mapping[str, Any]]] = [
    ("r1", services.AGENT),
    ("zookeeper1", services.ZOOKEEPER),
    ("spark-master", {**services.SPARK, "mem_limit": services.SPARK_MEMORY[True]}),
    ("spark-worker1", {**services.SPARK, "mem_limit": services.SPARK_MEMORY[False]}),
]


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_a_container_is_confined_as_the_service_is(name: str, options: Mapping[str, Any]) -> None:
    """Init, rights, user, a read-only root, and limits are the same."""
    entry = SERVICES[name].entry
    for option in ("init", "cap_drop", "security_opt", "user", "read_only", "pids_limit"):
        assert options.get(option) == entry.get(option), option
    assert options["mem_limit"] == int(entry["mem_limit"][:-1]) * UNITS[entry["mem_limit"][-1]]
    assert options["nano_cpus"] == entry["cpus"] * 1e9
    mounts = [f"{at}:{given}".rstrip(":") for at, given in options.get("tmpfs", {}).items()]
    assert mounts == entry.get("tmpfs", [])


def test_a_zookeeper_has_the_settings_of_the_service() -> None:
    """Each setting of the service is the same, but for the servers' names."""
    names = ["zookeeper1", "zookeeper2", "zookeeper3"]
    given = services.zookeeper_environment(names, 2)
    assert SERVICES["zookeeper2"].environment.items() <= given.items()
    assert given.keys() - SERVICES["zookeeper2"].environment.keys() == {
        "ZOO_TICK_TIME",
        "ZOO_INIT_LIMIT",
        "ZOO_SYNC_LIMIT",
    }


def test_an_agent_has_the_settings_of_the_service() -> None:
    """Each setting of the service has a counterpart; the secret comes another way, and copies are named."""
    given = services.agent_environment(
        "r1", "10.0.0.2", zk="z:2181/tidelock", founders=["r1"], copies=2, epoch_limit=None
    )
    assert {*SERVICES["r1"].environment} - {*given} == {"TIDELOCK_SECRET_FILE"}
    assert {*given} - {*SERVICES["r1"].environment} == {"TIDELOCK_COPIES"}
    joining = services.agent_environment(
        "r4", "10.0.0.5", zk="z:2181/tidelock", founders=["r1"], copies=2, epoch_limit=50
    )
    assert {*SERVICES["r4"].environment} - {*joining} == {"TIDELOCK_SECRET_FILE", "TIDELOCK_BOOTSTRAP"}
    image = compose.image_environment()
    assert (image["TIDELOCK_API_PORT"], image["TIDELOCK_DATA_PORT"], image["TIDELOCK_DATA_DIR"]) == (
        str(services.API_PORT),
        str(services.DATA_PORT),
        services.DATA,
    )


def test_spark_runs_the_programs_of_the_service() -> None:
    """The words of the commands are the same but for addresses and the page's port."""
    for name, service in (("master", "spark-master"), ("w1", "spark-worker1")):
        words = {*services.spark_command(name, "10.0.0.7", "spark://10.0.0.6:7077")}
        named = {*SERVICES[service].entry["command"]} - {"spark-master", "spark://spark-master:7077"}
        assert named <= words
    assert services.SPARK_FOLDERS.items() <= SERVICES["spark-worker1"].environment.items()
