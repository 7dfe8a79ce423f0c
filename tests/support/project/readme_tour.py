"""Runs the Python of README.md as one program, in a folder where `tidelock up` has made `my-cluster`.

    python -m tests.support.project.readme_tour FOLDER

It prints the output of the blocks, and the errors of Tidelock that end them. The first block of the page
precedes the tour and is not part of it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from tests.support.project.pages import blocks
from tidelock.errors import TidelockError


def main() -> None:
    """Run the blocks until one ends with an error that is not Tidelock's."""
    [folder] = sys.argv[1:]
    os.chdir(folder)
    names: dict[str, Any] = {}
    for block in blocks("README.md", "python")[1:]:
        try:
            exec(compile(block, "README.md", "exec"), names)  # noqa: S102 - our own
        except TidelockError as error:
            print(f"{type(error).__name__}: {error}")  # noqa: T201 - the test reads it
    names["spark"].stop()
    names["db"].close()


if __name__ == "__main__":
    main()
