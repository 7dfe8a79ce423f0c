"""The demo in the driver's container: the scenario of `demo.scenario`, with faults by order.

    python -m demo.containers.driver

Standard input and output belong to the machine that has started it (`demo.containers.orders`); what happens
meanwhile goes to standard error.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from demo.cluster import DemoCluster
from demo.command import WIDTH_PIPED
from demo.containers import orders
from demo.containers.orders import Setup
from demo.containers.remote_cluster import RemoteCluster
from demo.failure import DemoError
from demo.narrator import Narrator
from demo.report import DemoReport, as_json, container_steps, print_report
from demo.scenario import DemoScenario
from tidelock import secret_file
from tidelock.errors import TidelockError
from tidelock.exits import exit_of
from workloads import child


class Machine:
    """The machine outside, which carries out orders.

    Args:
        output: Where the orders go.
    """

    def __init__(self, output: IO[str]) -> None:
        self._output = output
        self._answers = child.requests()

    def setup(self) -> Setup:
        """Return the first line."""
        return Setup.of_json(next(self._answers))

    def order(self, order: Mapping[str, Any]) -> None:
        """Give an order, and return when it is done; DemoError if it fails, or nobody answers."""
        child.answer(order, to=self._output)
        answer = next(self._answers, None)
        if answer is None:
            raise DemoError(f"nobody outside of the container answers to {order}; run the demo again")
        if error := answer.get("error"):
            raise DemoError(f"the machine could not carry out {order}: {error}")

    def report(self, report: DemoReport, *, kept: bool) -> None:
        """Send the report, as text and as values."""
        text = io.StringIO()
        print_report(Console(file=text, width=WIDTH_PIPED, highlight=False), report, container_steps(kept=kept))
        violations = [str(violation) for violation in report.findings.violations]
        last = {"do": orders.REPORT, "text": text.getvalue(), "values": as_json(report), "violations": violations}
        child.answer(last, to=self._output)


def main() -> int:
    """Run the scenario and send its report; returns an exit code of `tidelock.exits`."""
    # Libraries, and the processes that they start, may print. The lines of JSON have the output for themselves.
    machine = Machine(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    setup = machine.setup()
    token = secret_file.of_environment(os.environ)
    cluster: DemoCluster = RemoteCluster(setup.places, token, machine.order)
    scenario = DemoScenario(
        cluster,
        Path(setup.folder),
        Narrator(Console(stderr=True, highlight=False)),
        scale_factor=setup.scale_factor,
        seconds=setup.seconds,
        token=token,
        spark=setup.spark,
    )
    try:
        machine.report(scenario.run(), kept=setup.kept)
    except TidelockError as error:
        sys.stderr.write(f"demo: {error.message}\n")
        return exit_of(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
