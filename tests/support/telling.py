"""Lines that a test prints at the end of the run although it passed: how much of its work was really done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

#: A function that takes a sentence for the end of the run.
Tell = Callable[[str], None]

_PROPERTY: Final = "told"


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """A function that keeps a sentence for the end of the run, also if another process prints it."""
    return lambda sentence: record_property(_PROPERTY, sentence)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the sentences."""
    for report in terminalreporter.getreports("passed"):
        for name, sentence in report.user_properties:
            if name == _PROPERTY:
                terminalreporter.write_line(f"{report.nodeid}: {sentence}")
