"""Seeds of tests that draw: a new one in every run, and the command that repeats a run that failed.

A test takes the fixture. A parameter must not be drawn: every worker collects the tests, and all of them must
collect the same ones.
"""

from __future__ import annotations

import os
import secrets
import sys
from typing import Final

import pytest

#: The environment variable that gives the seed again.
VARIABLE: Final = "TIDELOCK_TEST_SEED"


@pytest.fixture
def fresh_seed(request: pytest.FixtureRequest) -> int:
    """A seed that differs in every run; the output of a failure has the command that repeats it."""
    seed = int(os.environ.get(VARIABLE) or secrets.randbelow(1 << 31))
    name = request.node.originalname
    sys.stdout.write(f"{VARIABLE}={seed} make test-all PYTEST_ARGS='-k {name}'\n")
    return seed
