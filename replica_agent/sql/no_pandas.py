"""Keeps pandas out of a SQL process; only that process imports this module, and before any other of its room.

`pyarrow.dataset` loads pandas where it is installed, to recognise data frames, of which no statement has one.
Without pandas a process starts with about half of the processor time, and is 40 MB smaller.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _WithoutPandas(MetaPathFinder):
    """Answers for one name: it is not installed."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the interface
        target: ModuleType | None = None,  # noqa: ARG002 - the interface
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("a SQL process has no pandas", name=fullname)
        return None


sys.meta_path.insert(0, _WithoutPandas())
