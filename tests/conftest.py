"""Fixtures and options of all tests, and the mark of tests that need a container engine."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.clusters import engine

# An example that takes long says that the machine is shared, not that the code is wrong.
settings.register_profile("patient", parent=settings(), deadline=None)
settings.load_profile("patient")

pytest_plugins = [
    "pytester",
    "tests.support.replicas.fake_agent",
    "tests.support.zookeeper.servers",
    "tests.support.clusters.agreeing",
    "tests.support.clusters.cluster",
    "tests.support.tpch",
    "tests.support.telling",
    "tests.support.runs.few",
    "tests.support.runs.guard",
    "tests.support.runs.last_limit",
    "tests.support.runs.told_at_once",
    "tests.support.seeds",
]

#: The tests that only compute, and how much lower their priority is.
_COMPUTING = Path(__file__).parent / "sim"
_STANDS_BACK = 10
LEFT_OUT = pytest.StashKey[int]()
#: The longest files, in the order in which workers take them: short ones are left for the end. Those with
#: Spark are apart from each other: on a busy machine its Python processes may need longer to start than the
#: ten seconds that it allows.
_FIRST = (
    "tests/chaos/test_kept_seeds.py",
    "tests/chaos/test_chaos_runs.py",
    "tests/sim/test_explore.py",
    "tests/chaos/test_spark_streams.py",
    "tests/sim/test_seeds.py",
    "tests/chaos/test_kills.py",
    "tests/chaos/test_spark_drivers.py",
    "tests/sim/test_simulation.py",
    "tests/chaos/test_power_cuts_history.py",
    "tests/chaos/test_spark_source.py",
    "tests/chaos/test_power_cuts.py",
    "tests/chaos/test_disk_errors.py",
    "tests/chaos/test_spark_replicas.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag that rewrites the stories of the state machines (tests/testdata/README.md)."""
    parser.addoption(
        "--rewrite-scripts",
        action="store_true",
        help="write tests/testdata/*/*.txt and tests/sim/query_plans.txt anew",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first, and leave out the tests marked `docker` where no engine answers.

    In CI they stay, and fail.
    """
    places = {config.rootpath / path: place for place, path in enumerate(_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    marked = [item for item in items if item.get_closest_marker("docker")]
    if not marked or os.environ.get("CI") == "true" or engine.answers():
        return
    items[:] = [item for item in items if item not in marked]
    config.hook.pytest_deselected(items=marked)
    config.stash[LEFT_OUT] = len(marked)
    if (output := getattr(config, "workeroutput", None)) is not None:
        output["left_out"] = len(marked)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Let tests that only compute stand back while they run: those beside them wait for real processes.

    Some of these have few seconds to start, as the Python workers of Spark have. Without the right to raise
    it again the priority stays low.
    """
    if _COMPUTING not in pyfuncitem.path.parents:
        return (yield)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, before + _STANDS_BACK)
    try:
        return (yield)
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from the tests and their modules, which live as long as the process.

    While they are collected it would look at all of them again and again, for half of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """With several workers, each of them collects; the process that prints hears of it when one ends."""
    found = getattr(node, "workeroutput", {}).get("left_out", 0)
    node.config.stash[LEFT_OUT] = max(found, node.config.stash.get(LEFT_OUT, 0))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """In CI a missing engine is a failure: a job that silently tests less would be worth nothing."""
    if item.get_closest_marker("docker") and not engine.answers():
        pytest.fail("CI=true, but no container engine with compose answers", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say in one line what was left out."""
    if left_out := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(
            f"left out: {left_out} docker test(s): no container engine with compose answers"
        )
