"""The last limit of a test: its process prints all stacks and ends.

The limit of pytest-timeout comes first. It raises an error in the main thread, which a test whose threads
wait for each other holds up again while it joins them. Such a test would keep a run from ending. When its
process ends, the run goes on in another one and says which test it was.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator
from typing import Final

import pytest

#: Seconds after the limit of a test: its teardown may stop servers and print logs.
GRACE_S: Final = 300.0
_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the stream of errors as it is before output is captured."""
    config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the stream."""
    os.close(config.stash[_STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test under its last limit."""
    faulthandler.dump_traceback_later(limit_s(item), exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def limit_s(item: pytest.Item) -> float:
    """Return the last limit of a test, in seconds: a while after that of its mark or of the configuration."""
    mark = item.get_closest_marker("timeout")
    return GRACE_S + float(mark.args[0] if mark else item.config.getini("timeout"))
