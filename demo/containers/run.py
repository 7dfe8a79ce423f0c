"""The demo in containers, from the machine of the user: services, driver, orders, report, and nothing left."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from demo.command import EXIT_OK, EXIT_VIOLATION, ended_by_signals
from demo.containers import engine, images, orders, project
from demo.containers.orders import Setup
from demo.containers.project import Project
from demo.failure import DemoError
from demo.narrator import Narrator

from workloads.child import Child, ChildEndedError

AGENT: Final = "tidelock-agent:demo"
SPARK: Final = "tidelock-spark:demo"
DRIVER: Final = "tidelock-driver:demo"
ZOOKEEPER: Final = "tidelock-zookeeper:demo"
#: How long the driver may take to end after its report, in seconds.
_END_S: Final = 30.0
#: Settings that bring Spark from the driver's container to the master. Executors connect to the driver by name.
_SPARK: Final = {
    "spark.master": "spark://spark-master:7077",
    "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104 - of a container
    "spark.driver.host": "driver",
    "spark.executor.memory": "1g",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def run(scale_factor: float, *, seconds: float, keep: bool, json_out: bool) -> int:
    """Run the demo and return its exit code, as `demo.command.run`.

    Args:
        scale_factor: Of TPC-H.
        seconds: How long the writers write at full pace.
        keep: Leave the containers running.
        json_out: Print the report as JSON.

    Raises:
        ConfigError: No container engine, or no compose.
        DemoError: The demo could not reach its end.
    """
    compose = engine.compose()
    narrator = Narrator(Console(stderr=True, highlight=False))
    with tempfile.TemporaryDirectory(prefix="tidelock-demo-") as folder, ended_by_signals():
        project.sweep()
        narrator.say("images: building what has changed")
        services = Project(compose, Path(folder), build_images())
        narrator.say(f"containers: starting {services.name}: 3 ZooKeepers, 3 agents, Spark with 2 workers")
        with project.running(services, keep=keep):
            narrator.say("all of them are healthy")
            setup = Setup(services.places, scale_factor, seconds, _SPARK, "/data/demo", keep)
            last = play(services, setup)
    if json_out:
        print(json.dumps(last["values"], indent=2))  # noqa: T201 - the result, for programs
    else:
        print(last["text"])  # noqa: T201 - the result, for people
    for violation in last["violations"]:
        narrator.console.print(f"violation: {violation}", style="bold red", markup=False, soft_wrap=True)
    return EXIT_VIOLATION if last["violations"] else EXIT_OK


def build_images() -> dict[str, str]:
    """Build the images, and return the variables of docker/compose.yaml that name them."""
    named = {
        "TIDELOCK_IMAGE": images.build("agent", AGENT),
        "TIDELOCK_SPARK_IMAGE": images.build("spark", SPARK),
        "TIDELOCK_DRIVER_IMAGE": images.build("demo", DRIVER),
    }
    # A base of one's own says that no registry answers: then ZooKeeper's image is made here, too.
    if images.base({}):
        named["TIDELOCK_ZOOKEEPER_IMAGE"] = images.build_zookeeper(ZOOKEEPER)
    return named


def play(services: Project, setup: Setup) -> Mapping[str, Any]:
    """Run the scenario in the driver's container, carry out its orders, and return the last one, its report.

    DemoError if the driver ends without a report; it has said why.
    """
    container = services.container("driver")
    driver = Child(
        "demo.containers.driver",
        python=("docker", "exec", "--interactive", container, "python3"),
        own_session=True,  # Ctrl-C is for this process, which then ends the containers
    )
    try:
        driver.send(setup.as_json())
        while (order := driver.receive())["do"] != orders.REPORT:
            driver.send(_carried_out(order, services))
    except ChildEndedError as error:
        raise DemoError(f"the demo in {services.name} has ended without a report ({error})") from error
    finally:
        driver.end(_END_S)
    return dict(order)


def _carried_out(order: Mapping[str, Any], services: Project) -> dict[str, str]:
    try:
        engine.run(["docker", *orders.engine_command(order, services.container(order["replica"]))])
    except DemoError as error:
        return {"error": error.message}
    return {}
