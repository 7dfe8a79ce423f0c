"""`python -m demo [--scale-factor SF] [--seconds S] [--data-dir DIR] [--keep] [--json] [--containers]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from demo.command import run
from demo.containers.run import run as in_containers
from tidelock.errors import TidelockError
from tidelock.exits import Exit, exit_of

_SCALE_FACTOR_MIN: Final = 0.001
_SECONDS_MIN: Final = 1.0


def main() -> int:
    """Run the demo; returns an exit code of `tidelock.exits`."""
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="See it work: a cluster, TPC-H, writers, Spark, and a replica killed in mid-query.",
    )
    parser.add_argument(
        "--scale-factor", type=float, default=0.1, metavar="SF", help="of TPC-H; 0.1 has 600,000 line items"
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="an empty folder for everything; default: a temporary one",
    )
    parser.add_argument(
        "--containers", action="store_true", help="in the services of docker/compose.yaml, with Spark's workers"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the writers write at full pace")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running, for inspection")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, for programs")
    chosen = parser.parse_args()
    if chosen.scale_factor < _SCALE_FACTOR_MIN:
        parser.error(f"--scale-factor {chosen.scale_factor:g}: expected {_SCALE_FACTOR_MIN:g} or more")
    if chosen.seconds < _SECONDS_MIN:
        parser.error(f"--seconds {chosen.seconds:g}: expected {_SECONDS_MIN:g} or more")
    if chosen.containers and chosen.data_dir is not None:
        parser.error("--data-dir is not for --containers, which keep their data in volumes")
    try:
        if chosen.containers:
            return in_containers(
                chosen.scale_factor, seconds=chosen.seconds, keep=chosen.keep, json_out=chosen.json
            )
        return run(
            chosen.scale_factor,
            chosen.data_dir,
            seconds=chosen.seconds,
            keep=chosen.keep,
            json_out=chosen.json,
        )
    except TidelockError as error:
        notes = [f" ({note})" for note in getattr(error, "__notes__", ())]
        sys.stderr.write(f"demo: {error.message}{''.join(notes)}\n")
        return exit_of(error)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
