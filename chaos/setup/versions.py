"""The versions of what takes part in a run, for its journal."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Final

_PACKAGES: Final = ("tidelock", "duckdb", "kazoo", "pyarrow", "pyspark")


def versions() -> dict[str, str]:
    """Return the versions of the interpreter, the kernel, and of the packages that are installed, by name."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # a checkout need not be installed, and not every run has Spark
    return found
