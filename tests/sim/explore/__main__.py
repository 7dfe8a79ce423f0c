"""``python -m tests.sim.explore``: explore every scenario and plant every bug, and print what was found.

``--fast`` leaves out the large scenarios, as ``make test`` does; names choose scenarios and bugs
by a part of their name.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from tests.sim.explore.bugs import BUGS
from tests.sim.explore.replay import Replays
from tests.sim.explore.scenarios import SCENARIOS
from tests.sim.explore.search import STATES_MAX, ExplorationReport, Model, explore

_ROW = "{:<72} {:>9} {:>10} {:>6} {:>7} {:>7}  {}"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Run; 1 when the product breaks a promise or a planted bug is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--fast", action="store_true", help="the small scenarios only")
    parser.add_argument("--traces", action="store_true", help="print how each planted bug shows")
    options = parser.parse_args(arguments)
    _say(_ROW.format("scenario", "states", "steps", "depth", "finals", "CPU s", "found"))
    states, cpu_s, failed = 0, 0.0, False
    for scenario in SCENARIOS:
        if _wanted(scenario.name, options.names) and (scenario.fast or not options.fast):
            report = run(scenario.model)
            states, cpu_s = states + report.states, cpu_s + report.cpu_s
            failed |= report.broken is not None or report.cut
            _print_row(scenario.name, report)
            if report.broken is not None:
                _say(report.story())
    for bug in BUGS:
        if _wanted(bug.name, options.names):
            with bug.planted():
                report = run(bug.model)
            cpu_s += report.cpu_s
            failed |= report.broken is None or report.broken.invariant not in bug.breaks
            _print_row(f"bug: {bug.name}", report)
            if options.traces:
                _say(report.story())
    _say(f"{states} distinct states of the product, {cpu_s:.1f} s of CPU in all")
    return int(failed)


def run(model: Callable[[Replays], Model], *, states_max: int = STATES_MAX) -> ExplorationReport:
    """Explore one model; see :func:`.search.explore`."""
    with Replays() as replays:
        return explore(model(replays), states_max=states_max)


def _wanted(name: str, names: list[str]) -> bool:
    return not names or any(one in name for one in names)


def _print_row(name: str, report: ExplorationReport) -> None:
    found = "cut" if report.cut else "green" if report.broken is None else report.broken.invariant
    figures = (report.states, report.steps, report.depth, report.finals, f"{report.cpu_s:.1f}")
    _say(_ROW.format(name, *figures, found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
