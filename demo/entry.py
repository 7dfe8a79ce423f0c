"""The command line that both forms of the demo have: `python -m demo` and `python -m demo.containers`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Final

from tidelock.errors import TidelockError
from tidelock.exits import Exit, exit_of

_SCALE_FACTOR_MIN: Final = 0.001
_SECONDS_MIN: Final = 1.0


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that both forms have."""
    made = argparse.ArgumentParser(prog=prog, description=description)
    made.add_argument(
        "--scale-factor", type=float, default=0.1, metavar="SF", help="of TPC-H; 0.1 has 600,000 line items"
    )
    made.add_argument("--seconds", type=float, default=20.0, help="how long the writers write at full pace")
    made.add_argument("--keep", action="store_true", help="leave the cluster running, for inspection")
    made.add_argument("--json", action="store_true", help="print the report as JSON, for programs")
    return made


def parsed(options: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options of this process; a wrong one ends it, with the reason."""
    chosen = options.parse_args()
    if chosen.scale_factor < _SCALE_FACTOR_MIN:
        options.error(f"--scale-factor {chosen.scale_factor:g}: expected {_SCALE_FACTOR_MIN:g} or more")
    if chosen.seconds < _SECONDS_MIN:
        options.error(f"--seconds {chosen.seconds:g}: expected {_SECONDS_MIN:g} or more")
    return chosen


def exit_code(run: Callable[[], int]) -> int:
    """Return the exit code of a run (`tidelock.exits`); an error becomes a line on standard error."""
    try:
        return run()
    except TidelockError as error:
        notes = [f" ({note})" for note in getattr(error, "__notes__", ())]
        sys.stderr.write(f"demo: {error.message}{''.join(notes)}\n")
        return exit_of(error)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
