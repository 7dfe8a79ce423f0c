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


def test_sql_processes_import_no_pandas() -> None:
    """A SQL process uses Arrow's datasets, which load pandas where it is installed, and needs none."""
    code = (
        "import sys, tidelock.replica_agent.sql.worker; print({'pandas', 'pyarrow.dataset'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'pyarrow.dataset'}"


@pytest.mark.parametrize(
    ("leave_out", "imported"), [("no_pandas.leave_pandas_out(); ", "False"), ("", "True")]
)
def test_agents_import_no_pandas(leave_out: str, imported: str) -> None:
    """Without the measure, the first Python values that Arrow converts would import it."""
    code = (
        "import sys, pyarrow as pa; from tidelock.replica_agent import main; "
        f"from tidelock.replica_agent.config import no_pandas; {leave_out}"
        "pa.array(['a']); print('pandas.core' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == imported


def test_unknown_names_are_refused() -> None:
    """A name that Tidelock does not have is an AttributeError, also when a module beside it has it."""
    with pytest.raises(AttributeError, match="has no attribute 'from_wire'"):
        _ = tidelock.__getattr__("from_wire")
