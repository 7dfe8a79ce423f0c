"""A guard beside each run of the tests, which ends what the run has started when the run itself is over.

Servers and agents have process sessions of their own and survive the process that has started them, as
`tidelock up` needs it. So a test whose process is killed, and whose fixtures are not torn down, would leave
them forever. The guard is a process that waits for the end of the run, however it comes, and kills all
processes that carry the marker of the run.
"""

from __future__ import annotations

import os
import sys
import uuid
from typing import Final

import pytest

from tests.support.project.source import ROOT

#: The variable that all processes of a run carry.
NAME: Final = "TIDELOCK_TEST_RUN"


def pytest_configure(config: pytest.Config) -> None:
    """Start the guard of a run; workers of a run inherit its marker, and have none of their own.

    Nobody waits for the guard: it ends after this process.
    """
    if hasattr(config, "workerinput"):
        return
    os.environ[NAME] = uuid.uuid4().hex
    command = [sys.executable, "-m", "tests.support.runs.marked", str(os.getpid())]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    os.posix_spawn(
        sys.executable,
        [*command, f"{NAME}={os.environ[NAME]}"],
        os.environ | {"PYTHONPATH": paths},
        # A reader of the output of the run shall not have to wait for the guard as well.
        file_actions=[(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)],
        setsid=True,
    )
