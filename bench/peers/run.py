"""Runs each peer in a process tree of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.peers.measure import PEERS
from bench.tools.workload import ClientPace

#: Folders of packages that only one peer sees, below the environment.
_OWN_PACKAGES: Final = {"ducklake": Path(sys.prefix) / "ducklake"}
_LONGEST_S: Final = 600.0


def run(folder: Path, counts: Sequence[int], pace: ClientPace) -> list[dict[str, Any]]:
    """Measure every peer; one whose packages are not installed is left out, with the reason."""
    return [_peer(name, folder / name, counts, pace) for name in PEERS]


def _peer(name: str, folder: Path, counts: Sequence[int], pace: ClientPace) -> dict[str, Any]:
    own = _OWN_PACKAGES.get(name)
    if own is not None and not own.exists():
        return {"peer": name, "left_out": f"{own} does not exist; `make bench` makes it"}
    search = [str(own)] if own else []
    command = [
        *(sys.executable, "-m", "bench.peers", name, "--folder", str(folder)),
        *("--clients", ",".join(map(str, counts))),
        *("--warm-s", str(pace.warm_s), "--run-s", str(pace.run_s)),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*search, *sys.path[:1]])}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=_LONGEST_S
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"peer": name, "left_out": f"it failed: {last}"}
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures
