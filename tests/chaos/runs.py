"""Whole runs of the chaos runner by its command line, and the demands on each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chaos.__main__ import parser, plans_of
from chaos.result import Result, told
from chaos.runner import run
from chaos.setup.options import Options
from tests.chaos import outside_lists
from tests.support.faults import ability
from tests.support.telling import Tell

#: The bounds of a machine that many tests share.
SHARED: Final = Options(stall_max_s=60.0, converge_s=240.0)


#: Twice the pauses of clients: other tests need the machine too, and a home that gets no processor in time
#: looks as if it refused commits.
PACE: Final = ("--pace", "2")


def result_of(folder: Path, tell: Tell, *words: str, options: Options = SHARED) -> Result:
    """Run a command line of the runner in a folder, and show what it has come to."""
    [plan] = plans_of(parser().parse_args([*PACE, *words]))
    result = run(plan, folder / "run", options)
    tell(told(result, str(folder / "run")))
    return result


def require_passed(result: Result) -> None:
    """Require that no promise was broken, and that enough has happened to say so."""
    assert result.violations == []
    assert result.unproven == []
    assert result.commits > 0
    assert result.reads > 0


def require_lists_valid_outside(folder: Path, tell: Tell) -> None:
    """Require that a program of others finds nothing in the lists of a run either, if it had any."""
    ordered = folder / "run" / "histories" / "list_append.ordered.jsonl"
    if not ordered.exists():
        return
    if ability.is_lacking(lack := outside_lists.lack()):
        tell(f"the lists were judged by nobody else: {lack}")
        return
    outside_lists.require_valid(ordered)
