"""The rules about the shape of the code (rule layers), enforced by parsing every source file.

Each rule is a function from modules to violations. It is applied to the code, where it must find nothing, and
to a small offender, where it must find something, so that a rule cannot become blind.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Callable, Iterable

import pytest

from tests.support.project import source
from tests.support.project.floors import DOORS, FLOORS, LEAVES, page_with_table
from tests.support.project.source import Module

#: Folders that need an extra, and its name.
EXTRAS = {
    "tidelock/cli/files.py": "lakes",
    "spark/": "spark",
    "pyspark_tidelock/": "spark",
    "tidelock/metastore/": "metastore",
    "tidelock/testing/": "testing",
}
#: Libraries that come with pydantic and aiohttp, whose interfaces show their types.
BROUGHT_ALONG = ("pydantic_core", "yarl")
KAZOO_MODULE = "csnlog/zookeeper/kazoo_store.py"
DURABILITY_MODULE = "replication/partfs.py"

#: The end of the first docstring line of a pure core, which takes events and returns instructions.
PURE_MARK = " Pure."
#: Folders in which every module is a pure core.
PURE_FOLDERS = ("csnlog/core", "replication/core")
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

#: Parts of libraries that a core may import although it must not import the whole library.
PURE_PARTS = ("http.HTTPStatus", "urllib.parse")

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 600
#: Smallest number of words after `test_`: fewer words do not say what the test checks.
TEST_NAME_WORDS_MIN = 4
#: Folders whose docstring is a card: job, may import, entry points, failure.
WITH_ROOM_CARD = ("csnlog/", "replication/", "replica_agent/")


def walls(modules: Iterable[Module]) -> list[str]:
    """Return imports that FLOORS does not allow, and imports from unknown folders."""
    wrong = []
    for module in modules:
        room = module.path.rpartition("/")[0]
        allowed = FLOORS.get(room, ())
        for name, line in source.imports(module):
            if not source.below(name, "tidelock", *source.WALLED_BESIDE) or name == "tidelock.__version__":
                continue
            fine = source.below(name, *LEAVES)
            if not fine and not source.below(module.name, *LEAVES):
                fine = source.room_of(name) in (room, *allowed) or source.below(
                    name, *DOORS.get(module.path, ())
                )
            if not fine:
                wrong.append(f"{module.path}:{line} imports {name}")
    return wrong


def unknown_rooms(modules: Iterable[Module]) -> list[str]:
    """Return the modules in a folder whose allowed imports are not defined."""
    return [module.path for module in modules if module.path.rpartition("/")[0] not in FLOORS]


def is_pure(module: Module) -> bool:
    """Return whether a module's docstring marks it as a pure core."""
    return source.summary(module).endswith(PURE_MARK)


def unmarked_cores(modules: Iterable[Module]) -> list[str]:
    """Return the modules of a pure folder without the mark of a pure core."""
    return [
        module.path
        for module in modules
        if module.path.rpartition("/")[0] in PURE_FOLDERS
        and not module.path.endswith("__init__.py")
        and not is_pure(module)
    ]


def missing_libraries(modules: Iterable[Module]) -> list[str]:
    """Return imports of libraries that neither `tidelock` nor the extra of the folder installs."""
    project = tomllib.loads((source.ROOT / "pyproject.toml").read_text())["project"]
    base = [*project["dependencies"], *BROUGHT_ALONG, *sys.stdlib_module_names, "tidelock"]
    wrong = []
    for module in modules:
        extras = [extra for folder, extra in EXTRAS.items() if module.path.startswith(folder)]
        found = [*base, *(one for extra in extras for one in project["optional-dependencies"][extra])]
        known = {re.split(r"[^\w-]", one)[0].replace("-", "_") for one in found}
        wrong += [
            f"{module.path}:{line} imports {name}"
            for name, line in source.imports(module)
            if name.split(".")[0] not in known
        ]
    return wrong


def short_names(modules: Iterable[Module]) -> list[str]:
    """Return imports of a top folder by its short name, which load its modules a second time."""
    top_folders = [package for package in source.PACKAGES if package != "tidelock"]
    return [
        f"{module.path}:{line} imports {name}"
        for module in modules
        for name, line in source.imports(module)
        if source.below(name, *top_folders)
    ]


def kazoo_elsewhere(modules: Iterable[Module]) -> list[str]:
    """Return imports of kazoo outside the module that turns its results into outcomes."""
    return [
        f"{module.path}:{line} imports {name}"
        for module in modules
        for name, line in source.imports(module)
        if source.below(name, "kazoo") and module.path != KAZOO_MODULE
    ]


def durability_elsewhere(modules: Iterable[Module]) -> list[str]:
    """Return calls of fsync, rename and the like outside the module that makes files durable."""
    return [
        f"{module.path}:{line} uses {name}"
        for module in modules
        for name, line in source.durability_calls(module)
        if module.path != DURABILITY_MODULE
    ]


def impure_cores(modules: Iterable[Module]) -> list[str]:
    """Return forbidden uses in cores, also through imports: clock, threads, sockets, files, random."""
    wrong = []
    for module in modules:
        if not is_pure(module):
            continue
        for name, line in source.imports(module):
            if source.below(name, *IMPURE_IMPORTS) and not source.below(name, *PURE_PARTS):
                wrong.append(f"{module.path}:{line} imports {name}")
            if source.below(name, "tidelock") and not source.below(name, *LEAVES, *_pure_names()):
                wrong.append(f"{module.path}:{line} imports {name}, which is not pure")
        for name, line in source.builtin_calls(module, "open", "print", "input"):
            wrong.append(f"{module.path}:{line} calls {name}()")
    return wrong


@functools.cache
def _pure_names() -> tuple[str, ...]:
    return tuple(module.name for module in source.product_modules() if is_pure(module))


def long_functions(modules: Iterable[Module]) -> list[str]:
    """Return functions that do not fit on a screen."""
    return [
        f"{module.path}:{line} {name} has {count} lines"
        for module in modules
        for name, line, count in source.functions(module)
        if count > FUNCTION_LINES_MAX
    ]


def long_modules(modules: Iterable[Module]) -> list[str]:
    """Return modules that are so long that they have more than one job."""
    return [
        f"{module.path} has {module.line_count} lines"
        for module in modules
        if module.line_count > MODULE_LINES_MAX
    ]


def vague_test_names(modules: Iterable[Module]) -> list[str]:
    """Return names of tests that are too short to say what failed."""
    return [
        f"{module.path}:{line} {name}"
        for module in modules
        for name, line, _ in source.functions(module)
        if name.startswith("test_") and len(name.split("_")) - 1 < TEST_NAME_WORDS_MIN
    ]


def drawn_parameters(modules: Iterable[Module]) -> list[str]:
    """Return parameters of tests that are drawn: every worker would collect other tests."""
    return [
        f"{module.path}:{line} draws a parameter; take the fixture fresh_seed"
        for module in modules
        for line in source.drawn_parameters(module)
    ]


def hidden_results(modules: Iterable[Module]) -> list[str]:
    """Return uses of kazoo's `with client.transaction()`, which hides the results of the multi's elements."""
    return [
        f"{module.path}:{line} hides the results of a multi"
        for module in modules
        if any(source.below(name, "kazoo") for name, _ in source.imports(module))
        for line in source.with_transaction(module)
    ]


Rule = Callable[[Iterable[Module]], list[str]]

#: Each rule with offenders (path, text) that it must find.
RULES: dict[Rule, tuple[tuple[str, str], ...]] = {
    walls: (
        ("csnlog/x.py", "from tidelock.replication import apply"),
        ("csnlog/x.py", "from tidelock import client"),
        ("csnlog/core/x.py", "from tidelock.csnlog import log"),
        ("csnlog/core/x.py", "from tidelock.csnlog.zookeeper.connect import ConnectString"),
        ("csnlog/x.py", "from tidelock.csnlog.testing.memory_store import MemoryEnsemble"),
        ("replication/x.py", "import tidelock.replica_agent.main"),
        ("replica_agent/sql/x.py", "from tidelock.replica_agent.transactions import registry"),
        ("replica_agent/api/x.py", "def f():\n    from tidelock.client import connect"),
        ("spark/x.py", "from tidelock.csnlog.core.ids import Csn"),
        ("tidelock/cli/x.py", "import importlib\nimportlib.import_module('tidelock.replica_agent.main')"),
        ("tidelock/client/x.py", "from tidelock import replication"),
        ("tidelock/client/x.py", "from tidelock.csnlog.cluster import discovery"),
        ("tidelock/client/agents/discovery.py", "from tidelock.csnlog.zookeeper import kazoo_store"),
        ("tidelock/errors.py", "from tidelock import client"),
        ("replica_agent/attic/x.py", "from tidelock.csnlog.core import ids"),
        ("tidelock/cli/x.py", "from workloads import agents"),
        ("workloads/x.py", "from demo import report"),
        ("demo/x.py", "from tidelock.replica_agent.storage.catalog_reads import CatalogReader"),
    ),
    unknown_rooms: (("replica_agent/attic/x.py", ""),),
    unmarked_cores: (("csnlog/core/x.py", '"""A core."""'),),
    missing_libraries: (
        ("replica_agent/x.py", "import numpy as np"),
        ("tidelock/client/x.py", "from pyspark.sql import SparkSession"),
        ("spark/x.py", "import deltalake"),
    ),
    short_names: (("tests/unit/x.py", "from csnlog.core.ids import Csn"), ("tidelock/x.py", "import spark")),
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
        ("csnlog/core/model.py", '"""A. Pure."""\nimport time'),
        ("csnlog/core/follower.py", '"""A. Pure."""\nfrom os import path'),
        ("replication/core/copies.py", '"""A. Pure."""\nfrom tidelock.csnlog.zookeeper import kazoo_store'),
        ("replica_agent/x.py", '"""A. Pure.\n\nMore.\n"""\nopen("x")'),
    ),
    long_functions: (("spark/x.py", "def f():\n" + "    a()\n" * FUNCTION_LINES_MAX),),
    long_modules: (("spark/x.py", "a()\n" * (MODULE_LINES_MAX + 1)),),
    vague_test_names: (("tests/unit/x.py", "def test_every_column_type() -> None: ..."),),
    drawn_parameters: (
        (
            "tests/unit/x.py",
            "import random\n@pytest.mark.parametrize('n', [random.SystemRandom().random()])\ndef f(n): ...",
        ),
    ),
    hidden_results: (
        (
            "csnlog/zookeeper/kazoo_store.py",
            "import kazoo\nwith client.transaction() as t:\n    t.check('/', 1)",
        ),
    ),
}
#: Rules that hold for the tests, benchmarks and examples as well.
RULES_FOR_ALL = (short_names, long_functions, long_modules, vague_test_names, drawn_parameters)
#: Rules that hold for folders beside the product that have walls too.
RULES_FOR_WALLED = (walls, unknown_rooms, impure_cores)


def _ids(rule: object) -> str | None:
    return getattr(rule, "__name__", None)


@pytest.mark.scenario("S09")
@pytest.mark.parametrize("rule", RULES, ids=_ids)
def test_the_code_keeps_the_rule(rule: Rule) -> None:
    """No module breaks the rule."""
    modules = source.product_modules()
    if rule in RULES_FOR_ALL:
        for folder in ("tests", *source.BESIDE):
            modules += source.modules_of(folder)
    if rule in RULES_FOR_WALLED:
        for folder in source.WALLED_BESIDE:
            modules += source.modules_of(folder)
    assert rule(modules) == []


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [(rule, *offender) for rule, offenders in RULES.items() for offender in offenders],
    ids=_ids,
)
def test_the_rule_sees_an_offender(rule: Rule, path: str, text: str) -> None:
    """The rule finds the offence of each offender."""
    assert len(rule([Module.parse(path, text)])) == 1


@pytest.mark.parametrize("path", [KAZOO_MODULE, DURABILITY_MODULE, *DOORS, "tidelock/errors.py"])
def test_the_modules_that_rules_name_exist(path: str) -> None:
    """Each module that a rule names by its path exists, so that a renamed file cannot escape the rule."""
    assert path in {module.path for module in source.product_modules()}


def test_floors_name_only_folders_below_them() -> None:
    """FLOORS is written from the ground up: a folder may import only folders that precede it in the table."""
    order = list(FLOORS)
    for folder, below in FLOORS.items():
        assert (source.ROOT / folder).is_dir()
        assert all(order.index(one) < order.index(folder) for one in below)


def test_the_page_shows_the_floors() -> None:
    """docs/architecture.md has the present table of folders (python -m tests.support.project.floors)."""
    page = (source.ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert page_with_table(page) == page


@pytest.mark.parametrize("folder", [room for room in FLOORS if room.startswith(WITH_ROOM_CARD)])
def test_each_room_says_what_it_is_for(folder: str) -> None:
    """The docstring of a room has its job, its imports, its entry points, and the effect of failures."""
    module = next(one for one in source.modules_of(folder) if one.path == f"{folder}/__init__.py")
    text = " ".join((ast.get_docstring(module.tree) or "").split())
    below = ", ".join(FLOORS[folder]) or "nothing of ours"
    assert f" May import: {below}. Entry points: " in text
    assert " On failure: " in text


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
        ("csnlog/core/ids.py", "tidelock.csnlog.core.ids"),
        ("spark/__init__.py", "tidelock.spark"),
        ("tidelock/errors.py", "tidelock.errors"),
        ("tidelock/__init__.py", "tidelock"),
        ("tests/support/project/source.py", "tests.support.project.source"),
    ],
)
def test_a_file_has_one_import_name(path: str, name: str) -> None:
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
    """A call that only shares a name with a rename of files is allowed."""
    assert durability_elsewhere([Module.parse("tidelock/x.py", text)]) == []
