"""The demo in the driver's container: the scenario of `demo.scenario`, with faults by order.

    python -m demo.containers.driver

Standard input and output belong to the machine that has started it (`demo.containers.orders`); what happens
meanwhile goes to standard error.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from rich.console import Console

from demo import entry
from demo.command import WIDTH_PIPED
from demo.containers.orders import Order, Result, Setup
from demo.containers.remote_cluster import RemoteCluster
from demo.failure import DemoError
from demo.narrator import Narrator
from demo.report import DemoReport, as_json, print_report
from demo.scenario import DemoScenario
from tidelock import secret_file
from workloads import child


class Machine:
    """The machine outside, which carries out orders; for one thread at a time.

    Args:
        output: Where the orders go; the answers come from standard input.
    """

    def __init__(self, output: IO[str]) -> None:
        self._output = output
        self._lines = child.requests()

    def setup(self) -> Setup:
        """Return the first line; DemoError if there is none."""
        values = next(self._lines, None)
        if values is None:
            raise DemoError("expected the settings of the demo on standard input, found nothing")
        return Setup.of_json(values)

    def give(self, order: Order) -> None:
        """Give an order, and return when it is done; DemoError if it fails, or nobody answers."""
        child.answer(order.as_json(), to=self._output)
        answer = next(self._lines, None)
        if answer is None:
            raise DemoError(f"nobody outside of the container does {order}; run the demo again")
        if error := answer.get("error"):
            raise DemoError(f"the machine could not do {order}: {error}")

    def tell(self, result: Result) -> None:
        """Send the result."""
        child.answer(result.as_json(), to=self._output)


def result_of(report: DemoReport, steps: Sequence[str]) -> Result:
    """Return a report in all of its forms."""
    text = io.StringIO()
    print_report(Console(file=text, width=WIDTH_PIPED, highlight=False), report, steps)
    return Result(text.getvalue(), as_json(report), [str(one) for one in report.findings.violations])


def _run(machine: Machine) -> int:
    setup = machine.setup()
    token = secret_file.of_environment(os.environ)
    scenario = DemoScenario(
        RemoteCluster(setup.places, token, machine.give),
        Path(setup.folder),
        Narrator(Console(stderr=True, highlight=False), elapsed_s=setup.elapsed_s),
        scale_factor=setup.scale_factor,
        seconds=setup.seconds,
        token=token,
        spark=setup.spark,
    )
    machine.tell(result_of(scenario.run(), setup.steps))
    return 0


def main() -> int:
    """Run the scenario and send its result; returns an exit code of `tidelock.exits`."""
    # Libraries, and the processes that they start, may print. The lines of JSON have an output of their own.
    machine = Machine(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    return entry.exit_code(lambda: _run(machine))


if __name__ == "__main__":
    sys.exit(main())
