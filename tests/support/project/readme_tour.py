"""Runs the Python of README.md, as one program, in a Spark session.

    python -m tests.support.project.readme_tour URL FOLDER

It prints what the blocks print, and the errors that end them. Files are below the folder.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from examples.surroundings import session
from tests.support.project.pages import blocks
from tidelock.errors import TidelockError

#: Of an agent, as the README has it.
ADDRESS: Final = "http://127.0.0.1:31960"


def main() -> None:
    """Run until one ends with an error that is not Tidelock's."""
    url, folder = sys.argv[1:]
    os.chdir(folder)
    with session() as spark:
        names: dict[str, Any] = {"spark": spark}
        for block in blocks("README.md", "python"):
            try:
                exec(compile(block.replace(ADDRESS, url), "README.md", "exec"), names)  # noqa: S102 - our own
            except TidelockError as error:
                print(f"{type(error).__name__}: {error}")  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
