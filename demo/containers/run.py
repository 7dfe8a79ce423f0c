"""The demo in containers, from the machine of the user: services, driver, orders, report, and the end."""

from __future__ import annotations

import json
import sys
from typing import Final

from rich.console import Console

from demo.command import EXIT_OK, EXIT_VIOLATION, ended_by_signals
from demo.containers import engine, images, orders, project
from demo.containers.orders import Order, Result, Setup
from demo.containers.project import Project
from demo.failure import DemoError
from demo.narrator import Narrator
from tidelock.testing import labelled
from workloads.child import Child, ChildEndedError

#: How long the driver may take to end after its result, in seconds.
_END_S: Final = 30.0
#: Folder of the driver's container for the files of the demo.
_FOLDER: Final = "/data/demo"
#: Settings that bring Spark from the driver's container to the master, and executors to the driver.
_SPARK: Final = {
    "spark.master": "spark://spark-master:7077",
    "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104 - of a container
    "spark.driver.host": "driver",
    "spark.executor.memory": "1g",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def run(scale_factor: float, *, seconds: float, keep: bool, json_out: bool) -> int:
    """Run the demo and return its exit code, as `demo.command.run` does.

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
    with ended_by_signals():
        labelled.sweep()
        narrator.say("images: what has changed is built")
        services = Project("demo", compose, images.for_compose("demo"))
        narrator.say(f"{services.name}: three ZooKeepers, three agents and Spark with two workers start")
        with project.running(services, keep=keep):
            narrator.say("all of them are healthy")
            setup = Setup(
                services.places,
                scale_factor,
                seconds,
                _SPARK,
                _FOLDER,
                narrator.elapsed_s,
                next_steps(services, kept=keep),
            )
            result = play(services, setup)
    sys.stdout.write(f"{json.dumps(result.report, indent=2)}\n" if json_out else result.text)
    for violation in result.violations:
        narrator.console.print(f"violation: {violation}", style="bold red", markup=False, soft_wrap=True)
    if result.violations and not keep:
        narrator.say("with --keep the containers stay, with what was written in them")
    return EXIT_VIOLATION if result.violations else EXIT_OK


def next_steps(services: Project, *, kept: bool) -> list[str]:
    """Return the next step for a user: the containers, if they stay, or how to keep them."""
    pages = "docker/README.md: the containers; docs/architecture.md: how it works"
    if not kept:
        return [
            pages,
            "python -m demo.containers --keep: the same, and the containers stay for you to look at",
        ]
    return [
        pages,
        f"docker ps --filter name={services.name}: the containers, which still run",
        f"{services.end}: end them",
    ]


def play(services: Project, setup: Setup) -> Result:
    """Run the scenario in the driver's container, carry out its orders, and return its result.

    DemoError if the driver ends without one; it has said why.
    """
    driver = Child(
        "demo.containers.driver",
        python=("docker", "exec", "--interactive", services.container("driver"), "python3"),
        own_session=True,  # Ctrl-C is for this process, which then ends the containers
    )
    try:
        driver.send(setup.as_json())
        while True:
            said = orders.of_driver(driver.receive())
            if isinstance(said, Result):
                return said
            driver.send(_carried_out(said, services))
    except ChildEndedError as error:
        raise DemoError(f"the demo in {services.name} has ended without a report ({error})") from error
    finally:
        driver.end(_END_S)


def _carried_out(order: Order, services: Project) -> dict[str, str]:
    try:
        engine.run(["docker", *order.engine_words(services.container(order.replica))])
    except DemoError as error:
        return {"error": error.message}
    return {}
