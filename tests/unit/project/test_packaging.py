"""The distribution: what a wheel holds, what importing it costs, that the version is one (ADR 0001)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import tidelock
from tests.support.project import source


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel, built from a source distribution of a copy of the tree, without asking an index."""
    folder = tmp_path_factory.mktemp("dist")
    tree = folder / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(source.ROOT / name, tree)
    for package in (*source.PACKAGES, *source.ENTRIES, *source.BESIDE):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source.ROOT / package, tree / package, symlinks=True, ignore=ignored)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_every_module_below_one_name(wheel: zipfile.ZipFile) -> None:
    """The wheel has all modules as files of `tidelock`, type marker and licence; else only entry points."""
    names = set(wheel.namelist())
    modules = {
        path if path.split("/")[0] in {"tidelock", *source.ENTRIES} else f"tidelock/{path}"
        for path in (module.path for module in source.product_modules())
    }
    assert modules <= names
    assert "tidelock/py.typed" in names
    assert "tidelock/csnlog/__init__.py" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    version = metadata.version("tidelock")
    tops = {"tidelock", f"tidelock-{version}.dist-info", *source.ENTRIES}
    assert {name.split("/")[0] for name in names} == tops


def test_the_wheel_holds_no_demo_and_no_workloads(wheel: zipfile.ZipFile) -> None:
    """The demo, benchmarks and tests of the product remain in the checkout, under any folder.

    See docs/adr/0018-the-demo-is-not-installed.md.
    """
    folders = {part for name in wheel.namelist() for part in Path(name).parts[:-1]}
    assert folders.isdisjoint({*source.BESIDE, "tests"})


def test_the_version_stands_in_one_place() -> None:
    """`tidelock.__version__` is what pyproject.toml says."""
    project = tomllib.loads(Path(source.ROOT, "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert tidelock.__version__ == project["version"]


def test_the_import_of_tidelock_is_lazy() -> None:
    """Importing `tidelock` loads no dependency and no module of the package."""
    heavy = ("tidelock.", "kazoo", "pyspark", "pyarrow", "duckdb", "aiohttp", "pydantic", "typer", "urllib3")
    code = f"import sys, tidelock; print([name for name in sys.modules if name.startswith({heavy})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_reader_processes_import_no_pyarrow() -> None:
    """A reader is small: it needs the catalog's rows and files, and no Arrow."""
    code = (
        "import sys, tidelock.replica_agent.readers.worker; "
        "print(sorted({'pyarrow', 'numpy', 'duckdb', 'kazoo'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


AGENT = "tidelock.replica_agent"


@pytest.mark.parametrize(
    "module",
    [
        *(f"{AGENT}.{name}" for name in ("main", "sql.worker", "readers.worker", "uploads.examiner_process")),
        "tests.support.clusters.template",
    ],
)
def test_processes_of_an_agent_load_no_packages_of_clients(module: str) -> None:
    """They use Arrow, DuckDB and structlog, which load these where they are installed."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", module],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode, "it was started without its arguments"
    loaded = {line.split("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "msgspec._core" in loaded
    # A module of each: the package itself is listed when its import fails, too.
    assert not loaded & {"numpy.version", "pandas.core", "rich.console"}


def test_the_process_of_the_protocol_loads_no_duckdb() -> None:
    """It runs SQL in other processes. DuckDB costs 40 MB, and writes to the log when a process ends early."""
    code = f"import sys, {AGENT}.main; print('duckdb' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_arrow_converts_values_without_numpy_and_pandas() -> None:
    """The first Python values that it converts would import pandas."""
    code = (
        "from tidelock.replica_agent.config import lean_start; lean_start.leave_out_packages(); "
        "import pyarrow as pa, sys; assert pa.array(['a', 1.5][:1]).to_pylist() == ['a']; "
        "print({'numpy', 'pandas'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_agents_load_no_certificates_of_the_system() -> None:
    """The TLS context that aiohttp makes stays empty, and the environment is as before."""
    code = (
        "import os; os.environ['SSL_CERT_DIR'] = '/certificates'; before = dict(os.environ); "
        "from tidelock.replica_agent.config import lean_start; lean_start.import_aiohttp(); "
        "import aiohttp.connector; "
        "print(aiohttp.connector._SSL_CONTEXT_VERIFIED.cert_store_stats()['x509'], before == os.environ)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0 True"


def test_unknown_names_are_refused() -> None:
    """A name that Tidelock does not have is an AttributeError, also when a module beside it has it."""
    with pytest.raises(AttributeError, match="has no attribute 'from_wire'"):
        _ = tidelock.__getattr__("from_wire")
