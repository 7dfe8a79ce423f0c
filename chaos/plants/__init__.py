"""Bugs that a run can plant into all agents, so that it must fail: `python -m chaos --plant NAME`.

A judge without findings proves nothing unless it finds what is planted. Agents are processes of the real
program; `site/sitecustomize.py`, which Python imports at the start of each process, replaces a piece of it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

#: The variable that names the bug of an agent.
VARIABLE: Final = "TIDELOCK_CHAOS_PLANT"
#: Each bug with the module whose `plant` puts it in place.
ALL: Final[Mapping[str, str]] = {
    "lose-a-commit": "chaos.plants.lose_a_commit",
    "torn-snapshot": "chaos.plants.torn_snapshot",
}
_FOLDER: Final = Path(__file__).resolve().parent


def environment(name: str) -> dict[str, str]:
    """Return the variables by which agents get a bug."""
    paths = [str(_FOLDER / "site"), str(_FOLDER.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {VARIABLE: name, "PYTHONPATH": os.pathsep.join(paths)}


def put(name: str) -> None:
    """Put a bug in place in this process; KeyError if there is none of this name."""
    importlib.import_module(ALL[name]).plant()
