"""The report of a failed test is printed when the test ends, and not at the end of the run only.

A run of hours that is interrupted would else keep the reason for itself.
"""

from __future__ import annotations

from typing import Final

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Watch the reports where they are printed: in the main process, not in its workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Teller(config), "told-at-once")


class _Teller:
    def __init__(self, config: pytest.Config) -> None:
        self._config: Final = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print a failure."""
        printer = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and printer is not None:
            printer.ensure_newline()
            printer.section(f"{report.nodeid} ({report.when}, {report.duration:.0f} s)", sep="_", red=True)
            printer.write_line(report.longreprtext)
