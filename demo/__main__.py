"""`python -m demo [--scale-factor SF] [--seconds S] [--data-dir DIR] [--keep] [--json]` runs the demo."""

from __future__ import annotations

import sys
from pathlib import Path

from demo import entry
from demo.command import run


def main() -> int:
    """Run the demo; returns an exit code of `tidelock.exits`."""
    parser = entry.parser(
        "python -m demo", "See it work: a cluster, TPC-H, writers, Spark, and a replica killed in mid-query."
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="an empty folder for everything; default: a temporary one",
    )
    chosen = entry.parsed(parser)
    return entry.exit_code(
        lambda: run(
            chosen.scale_factor,
            chosen.data_dir,
            seconds=chosen.seconds,
            keep=chosen.keep,
            json_out=chosen.json,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
