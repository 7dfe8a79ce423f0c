"""The rules about the shape of the code (design sections 2 and 7), enforced by parsing every source file.

Each rule is a function from modules to violations. It is applied to the code, where it must find nothing, and
to a small offender, where it must find something: a rule that can no longer see its offence is no rule.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterable

import pytest

from tests.support import source
from tests.support.source import Module

#: What each package may import of the namespace, besides the leaves.
MAY_IMPORT = {
    "csnlog": ("tidelock.csnlog",),
    "replication": ("tidelock.csnlog", "tidelock.replication"),
    "replica_agent": ("tidelock.csnlog", "tidelock.replication", "tidelock.replica_agent"),
}
#: The inside of an agent: clients, command line and Spark talk to it over HTTP, or start it as a process.
INSIDE = ("tidelock.csnlog", "tidelock.replication", "tidelock.replica_agent")
#: The one import of the inside from outside (docs/adr/0003-client-discovery.md), by the path of the module.
DISCOVERY = {"tidelock/client/discovery.py": ("tidelock.csnlog.discovery",)}
#: Where the extra `spark` is installed.
WITH_SPARK = ("spark/", "pyspark_tidelock/", "tidelock/demo/")
#: Libraries that come with pydantic and aiohttp, whose interfaces show their types.
BROUGHT_ALONG = ("pydantic_core", "yarl")
#: Everybody may import these; they import nothing of the namespace.
LEAVES = (
    "tidelock.errors",
    "tidelock.parquet_rows",
    "tidelock.part_layout",
    "tidelock.partition_paths",
    "tidelock.ranged_file",
    "tidelock.token_text",
)

KAZOO_MODULE = "csnlog/zk.py"
DURABILITY_MODULE = "replication/partfs.py"

#: The pure cores: events in, instructions out.
PURE = (
    "replica_agent/compaction/duty.py",
    "replica_agent/compaction/planner.py",
    "csnlog/batch.py",
    "csnlog/codec.py",
    "csnlog/committer.py",
    "csnlog/fence.py",
    "csnlog/follow_messages.py",
    "csnlog/follower.py",
    "csnlog/ids.py",
    "csnlog/labels.py",
    "csnlog/messages.py",
    "csnlog/model.py",
    "csnlog/pending.py",
    "csnlog/results.py",
    "csnlog/store.py",  # operations as values, and the protocol that a store fulfils
    "csnlog/tree.py",
    "csnlog/verdicts.py",
    "csnlog/visibility.py",
    "replication/core.py",
    "replication/digest.py",
    "replication/lock_book.py",
    "replication/lock_rules.py",
    "replication/horizon_rules.py",
    "replication/model.py",
    "replication/prefix.py",
    "replication/wire.py",
    "replica_agent/audit/findings.py",
    "replica_agent/audit/judgements.py",
    "replica_agent/audit/rules.py",
    "replica_agent/writes/area.py",
    "replica_agent/writes/places.py",
    "replica_agent/writes/grants.py",
    "replica_agent/writes/signed.py",
    "replica_agent/writes/tokens.py",
    "replica_agent/writes/turns.py",
    "spark/source/options.py",
    "spark/source/pieces.py",
    "spark/source/feed_columns.py",
    "spark/source/stream_options.py",
)
IMPURE_IMPORTS = (
    *("aiohttp", "asyncio", "concurrent", "duckdb", "http", "io", "kazoo", "logging", "multiprocessing"),
    *("os", "pathlib", "queue", "random", "secrets", "selectors", "shutil", "signal", "socket", "sqlite3"),
    *(
        "structlog",
        "subprocess",
        "sys",
        "tempfile",
        "tenacity",
        "threading",
        "time",
        "urllib",
        "urllib3",
        "uuid",
    ),
)

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500


def import_directions(modules: Iterable[Module]) -> list[str]:
    """Imports of the namespace that point the wrong way."""
    wrong = []
    for module in modules:
        package = module.path.split("/", maxsplit=1)[0]
        for name, line in source.imports(module):
            if not source.below(name, "tidelock") or source.below(name, *LEAVES):
                continue
            if source.below(module.name, *LEAVES):
                allowed = False
            elif package in MAY_IMPORT:
                allowed = source.below(name, *MAY_IMPORT[package]) or name == "tidelock.__version__"
            else:
                allowed = not source.below(name, *INSIDE) or name in DISCOVERY.get(module.path, ())
            if not allowed:
                wrong.append(f"{module.path}:{line} imports {name}")
    return wrong


def missing_libraries(modules: Iterable[Module]) -> list[str]:
    """Imports of libraries that no installation brings: `tidelock`, or `tidelock[spark]` for Spark."""
    project = tomllib.loads((source.ROOT / "pyproject.toml").read_text())["project"]
    base = [*project["dependencies"], *BROUGHT_ALONG, *sys.stdlib_module_names, "tidelock"]
    spark = [*base, *project["optional-dependencies"]["spark"]]
    wrong = []
    for module in modules:
        found = spark if module.path.startswith(WITH_SPARK) else base
        known = {re.split(r"[^\w-]", one)[0].replace("-", "_") for one in found}
        wrong += [
            f"{module.path}:{line} imports {name}"
            for name, line in source.imports(module)
            if name.split(".")[0] not in known
        ]
    return wrong


def short_names(modules: Iterable[Module]) -> list[str]:
    """Imports of a top folder by its short name, which would load its modules a second time."""
    top_folders = [package for package in source.PACKAGES if package != "tidelock"]
    return [
        f"{module.path}:{line} imports {name}"
        for module in modules
        for name, line in source.imports(module)
        if source.below(name, *top_folders)
    ]


def kazoo_elsewhere(modules: Iterable[Module]) -> list[str]:
    """Imports of kazoo outside the one module that turns its results into outcomes."""
    return [
        f"{module.path}:{line} imports {name}"
        for module in modules
        for name, line in source.imports(module)
        if source.below(name, "kazoo") and module.path != KAZOO_MODULE
    ]


def durability_elsewhere(modules: Iterable[Module]) -> list[str]:
    """Calls of fsync, rename and their kin outside the one module that makes files durable."""
    return [
        f"{module.path}:{line} uses {name}"
        for module in modules
        for name, line in source.durability_calls(module)
        if module.path != DURABILITY_MODULE
    ]


def impure_cores(modules: Iterable[Module]) -> list[str]:
    """What a core must not touch, directly or through imports: clock, threads, sockets, files, random."""
    pure_names = [module_path.removesuffix(".py").replace("/", ".") for module_path in PURE]
    allowed = (*LEAVES, *(f"tidelock.{name}" for name in pure_names))
    wrong = []
    for module in modules:
        if module.path not in PURE:
            continue
        for name, line in source.imports(module):
            if source.below(name, *IMPURE_IMPORTS):
                wrong.append(f"{module.path}:{line} imports {name}")
            if source.below(name, "tidelock") and not source.below(name, *allowed):
                wrong.append(f"{module.path}:{line} imports {name}, which is not pure")
        for name, line in source.builtin_calls(module, "open", "print", "input"):
            wrong.append(f"{module.path}:{line} calls {name}()")
    return wrong


def long_functions(modules: Iterable[Module]) -> list[str]:
    """Functions that do not fit on a screen."""
    return [
        f"{module.path}:{line} {name} has {count} lines"
        for module in modules
        for name, line, count in source.functions(module)
        if count > FUNCTION_LINES_MAX
    ]


def long_modules(modules: Iterable[Module]) -> list[str]:
    """Modules that surely have more than one job."""
    return [
        f"{module.path} has {module.line_count} lines"
        for module in modules
        if module.line_count > MODULE_LINES_MAX
    ]


def hidden_results(modules: Iterable[Module]) -> list[str]:
    """`with client.transaction()` of kazoo, which hides what every element of the multi ended with."""
    return [
        f"{module.path}:{line} hides the results of a multi"
        for module in modules
        if any(source.below(name, "kazoo") for name, _ in source.imports(module))
        for line in source.with_transaction(module)
    ]


Rule = Callable[[Iterable[Module]], list[str]]

#: Each rule with offenders (path, text) that it must see.
RULES: dict[Rule, tuple[tuple[str, str], ...]] = {
    import_directions: (
        ("csnlog/x.py", "from tidelock.replication import core"),
        ("csnlog/x.py", "from tidelock import client"),
        ("replication/x.py", "import tidelock.replica_agent.main"),
        ("replica_agent/x.py", "def f():\n    from tidelock.client import connect"),
        ("spark/x.py", "from tidelock.csnlog.ids import Csn"),
        ("tidelock/cli/x.py", "import importlib\nimportlib.import_module('tidelock.replica_agent.main')"),
        ("tidelock/client/x.py", "from tidelock import replication"),
        ("tidelock/client/x.py", "from tidelock.csnlog import discovery"),
        ("tidelock/client/discovery.py", "from tidelock.csnlog import zk"),
        ("tidelock/errors.py", "from tidelock import client"),
    ),
    missing_libraries: (
        ("replica_agent/x.py", "import numpy as np"),
        ("tidelock/client/x.py", "from pyspark.sql import SparkSession"),
        ("spark/x.py", "import deltalake"),
    ),
    short_names: (("tests/unit/x.py", "from csnlog.ids import Csn"), ("tidelock/x.py", "import spark")),
    kazoo_elsewhere: (
        ("replica_agent/x.py", "from kazoo.client import KazooClient"),
        ("tidelock/zookeeper.py", "import kazoo"),
    ),
    durability_elsewhere: (
        ("replication/fetch.py", "import os\nos.fsync(3)"),
        ("tidelock/x.py", "from os import replace"),
        ("tidelock/x.py", "a.rename(b)"),
        ("csnlog/x.py", "path.with_suffix('.tmp').replace(path)"),
    ),
    impure_cores: (
        ("csnlog/model.py", "import time"),
        ("csnlog/follower.py", "from os import path"),
        ("replication/core.py", "from tidelock.csnlog import zk"),
        ("csnlog/codec.py", "open('x')"),
    ),
    long_functions: (("spark/x.py", "def f():\n" + "    a()\n" * FUNCTION_LINES_MAX),),
    long_modules: (("spark/x.py", "a()\n" * (MODULE_LINES_MAX + 1)),),
    hidden_results: (("csnlog/zk.py", "import kazoo\nwith client.transaction() as t:\n    t.check('/', 1)"),),
}
#: Rules that hold for the tests, benchmarks and examples as well.
RULES_FOR_ALL = (short_names, long_functions, long_modules)


def _ids(rule: object) -> str | None:
    return getattr(rule, "__name__", None)


@pytest.mark.parametrize("rule", RULES, ids=_ids)
def test_the_code_keeps_the_rule(rule: Rule) -> None:
    """No module breaks the rule."""
    modules = source.product_modules()
    if rule in RULES_FOR_ALL:
        for folder in ("tests", "bench", "examples"):
            modules += source.modules_of(folder)
    assert rule(modules) == []


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [(rule, *offender) for rule, offenders in RULES.items() for offender in offenders],
    ids=_ids,
)
def test_the_rule_sees_an_offender(rule: Rule, path: str, text: str) -> None:
    """The rule finds an offence where there is one."""
    assert len(rule([Module.parse(path, text)])) == 1


@pytest.mark.parametrize("path", [*PURE, KAZOO_MODULE, DURABILITY_MODULE, "tidelock/errors.py"])
def test_the_modules_that_rules_name_exist(path: str) -> None:
    """A module that a rule names by its path is there, so the rule cannot pass by a renamed file."""
    assert path in {module.path for module in source.product_modules()}


@pytest.mark.parametrize("package", source.PACKAGES)
def test_every_package_is_seen_once(package: str) -> None:
    """Each package has modules besides its docstring, and the symlinks do not show them twice."""
    paths = [module.path for module in source.modules_of(package)]
    assert f"{package}/__init__.py" in paths
    assert len(paths) > 1
    assert all(path.startswith(f"{package}/") for path in paths)
    assert not any(path.startswith(f"tidelock/{other}/") for path in paths for other in source.PACKAGES)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("csnlog/ids.py", "tidelock.csnlog.ids"),
        ("spark/__init__.py", "tidelock.spark"),
        ("tidelock/errors.py", "tidelock.errors"),
        ("tidelock/__init__.py", "tidelock"),
        ("tests/support/source.py", "tests.support.source"),
    ],
)
def test_import_names(path: str, name: str) -> None:
    """A file is known by the one name under which it may be imported."""
    assert Module.parse(path, "").name == name


@pytest.mark.parametrize(
    "text",
    [
        "'a'.replace('b', 'c')",
        "import dataclasses\ndataclasses.replace(a, b=1)",
        "when.replace(tzinfo=None)",
        "table.rename_columns(names)",
    ],
)
def test_harmless_calls_are_no_durability_calls(text: str) -> None:
    """What only shares a name with a rename of files is let through."""
    assert durability_elsewhere([Module.parse("tidelock/x.py", text)]) == []
