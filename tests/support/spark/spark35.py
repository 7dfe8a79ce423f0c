"""The location of PySpark 3.5, beside the one of the environment; `make test-all` installs it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.project.source import ROOT

_FOLDER: Final = ROOT / ".venv" / "spark35"


def folder() -> Path:
    """Return the folder for PYTHONPATH; AssertionError if it is missing, since tests must not be skipped."""
    assert (_FOLDER / "stamp").exists(), "Spark 3.5 is not installed: run `make .venv/spark35/stamp`"
    return _FOLDER
