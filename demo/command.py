"""The demo as a whole: a cluster in a folder, the scenario on it, the report, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from rich.console import Console

from demo.narrator import Narrator
from demo.report import DemoReport, as_json, next_steps, print_report
from demo.scenario import DemoScenario
from tidelock import secret_file
from tidelock.cluster import LocalCluster
from tidelock.errors import ConfigError
from workloads import spark_session
from workloads.tpch.data import find_generator

EXIT_OK: Final = 0
#: A check did not hold: the data contradicts what was promised (tidelock.exits: 5).
EXIT_VIOLATION: Final = 5
REPLICAS: Final = 3
#: Width of the table where there is no terminal.
WIDTH_PIPED: Final = 140


def run(
    scale_factor: float,
    data_dir: Path | None = None,
    *,
    seconds: float = 20.0,
    keep: bool = False,
    json_out: bool = False,
) -> int:
    """Run the demo and return its exit code: 0 when every check held.

    Args:
        scale_factor: Of TPC-H; 1 is about a gigabyte of text.
        data_dir: Folder for everything, empty or not there; default: a temporary one.
        seconds: How long the writers write at full pace.
        keep: Leave the cluster running and the folder in place.
        json_out: Print the report as JSON. What happens meanwhile goes to standard error in any case.

    Raises:
        ConfigError: The folder is not empty, or a program that the demo needs is missing.
        DemoError: The demo could not reach its end, e.g. three strikes in a row hit no running task.
        TidelockError: Any other error. The folder is kept then, for its logs.
    """
    find_generator()
    spark_session.require()
    folder = _folder(data_dir)
    narrator = Narrator(Console(stderr=True, highlight=False))
    cluster = LocalCluster.create(folder, replicas=REPLICAS)
    try:
        with ended_by_signals():
            report = _play(cluster, narrator, scale_factor, seconds)
    except BaseException as error:
        cluster.down()
        if isinstance(error, Exception):
            error.add_note(f"logs of the agents, of Spark and of the clients are in {folder}")
        else:  # the user has had enough
            shutil.rmtree(folder)
        raise
    if json_out:
        print(json.dumps(as_json(report), indent=2))  # noqa: T201 - the result, for programs
    else:
        print_report(_results(), report, next_steps(folder, kept=keep))
    if not keep:
        cluster.down()
    if violations := report.findings.violations:
        for violation in violations:
            narrator.console.print(f"violation: {violation}", style="bold red", markup=False, soft_wrap=True)
        narrator.console.print(f"what was written is kept in {folder}", markup=False, soft_wrap=True)
        return EXIT_VIOLATION
    if not keep:
        shutil.rmtree(folder)
    return EXIT_OK


def _results() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_PIPED)


def _play(cluster: LocalCluster, narrator: Narrator, scale_factor: float, seconds: float) -> DemoReport:
    with narrator.busy(lambda: "starting ZooKeeper and three agents"):
        cluster.up()
    narrator.say(f"ZooKeeper and the replicas {', '.join(cluster.replicas)} run in {cluster.folder}")
    scenario = DemoScenario(
        cluster,
        cluster.folder / "demo",
        narrator,
        scale_factor=scale_factor,
        seconds=seconds,
        token=secret_file.of_environment(os.environ),
    )
    return scenario.run()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn signals that would end this process at once into SystemExit, so that the cluster ends as well."""

    def end(signum: int, _frame: object) -> NoReturn:
        sys.exit(128 + signum)

    before = {signum: signal.signal(signum, end) for signum in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _folder(data_dir: Path | None) -> Path:
    """The folder to work in; ConfigError when it holds something already."""
    if data_dir is None:
        return Path(tempfile.mkdtemp(prefix="tidelock-demo-"))
    folder = data_dir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; name an empty folder, or one that does not exist")
    return folder
