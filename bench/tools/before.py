"""The state before: the same parts, measured in a checkout of an earlier commit, in the same run.

The checkout runs with the packages of the present environment, and with its own modules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

#: The parts whose figures are compared. Each of them is as old as the benchmark.
COMPARED: Final = frozenset({"commits", "lag", "load", "spark", "mutations"})


def run(checkout: Path, parts: Collection[str], *, quick: bool, scale_factor: float | None) -> dict[str, Any]:
    """Return the figures that the benchmark of a checkout finds.

    Args:
        checkout: A clone at the earlier commit.
        parts: Parts to measure, of `COMPARED`.
        quick: As for this run.
        scale_factor: As for this run.

    Raises:
        RuntimeError: The folder has no benchmark, or the benchmark failed; its output has been printed.
    """
    if not (checkout / "bench" / "__main__.py").is_file():
        raise RuntimeError(f"expected a checkout of Tidelock with its benchmark, found {checkout}")
    with tempfile.TemporaryDirectory(prefix="tidelock-bench-") as out:
        words = [sys.executable, "-m", "bench", *sorted(parts), "--out", out]
        if quick:
            words.append("--quick")
        if scale_factor is not None:
            words += ["--scale-factor", str(scale_factor)]
        environment = os.environ | {"PYTHONPATH": str(checkout.resolve())}
        ended = subprocess.run(words, cwd=checkout, env=environment, check=False)
        if ended.returncode:
            raise RuntimeError(f"the benchmark in {checkout} ended with code {ended.returncode}")
        lines = (Path(out) / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    figures: dict[str, Any] = json.loads(lines[-1])
    return figures
