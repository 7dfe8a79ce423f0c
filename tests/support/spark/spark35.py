"""Where PySpark 3.5 lies, beside the one of the environment; `make test-all` puts it there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.project.source import ROOT

_FOLDER: Final = ROOT / ".venv" / "spark35"


def folder() -> Path:
    """Return what belongs on PYTHONPATH; AssertionError where it is missing, since nobody is to miss that."""
    assert (_FOLDER / "stamp").exists(), "Spark 3.5 is not installed: run `make .venv/spark35/stamp`"
    return _FOLDER
