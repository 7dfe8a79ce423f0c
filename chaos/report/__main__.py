"""Write the report of a run again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chaos import report


def main(arguments: list[str] | None = None) -> None:
    """Write the report, or with ``--picture`` the timeline, and print its path."""
    parser = argparse.ArgumentParser(prog="python -m chaos.report", description="Write the report of a run.")
    parser.add_argument("folder", type=Path, help="the folder of the run, with journal.jsonl")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the timeline alone, as SVG")
    parser.add_argument(
        "--minutes", type=float, nargs=2, metavar=("FROM", "TO"), help="the part that the picture shows"
    )
    given = parser.parse_args(arguments)
    if not (given.folder / "journal.jsonl").is_file():
        parser.error(f"{given.folder} has no journal.jsonl: name the folder of a run")
    if given.picture is None:
        path = report.write(given.folder)
    else:
        minutes = tuple(given.minutes) if given.minutes else None
        path = report.picture(given.folder, given.picture, minutes=minutes)
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
