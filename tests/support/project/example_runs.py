"""Runs programs of examples/, one after the other, in one process with one Spark session.

    python -m tests.support.project.example_runs URL FOLDER NAME...

The output of the n-th program goes to the file FOLDER/n. A program that fails ends the process.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path

from examples.surroundings import session


def main() -> None:
    """Run the programs until one fails."""
    url, folder, *names = sys.argv[1:]
    with session():
        for number, name in enumerate(names):
            with (
                Path(folder, str(number)).open("w", encoding="utf-8") as output,
                contextlib.redirect_stdout(output),
            ):
                importlib.import_module(f"examples.{name}").main(["--url", url])


if __name__ == "__main__":
    main()
