"""The checks: what must be true at the end of a run. One file for each; the list is `ALL`."""

from __future__ import annotations

from typing import Final

from chaos.checks.agreement import Agreement
from chaos.checks.audited import Audited
from chaos.checks.check import Check
from chaos.checks.convergence import Convergence
from chaos.checks.demand import Demand
from chaos.checks.history import History
from chaos.checks.label import Label
from chaos.checks.leftovers import Leftovers
from chaos.checks.logs import Logs
from chaos.checks.outcomes import Outcomes
from chaos.checks.outvoted import Outvoted
from chaos.checks.quiet import Quiet
from chaos.checks.refusals import Refusals

#: All checks, in the order in which they judge.
ALL: Final[tuple[type[Check], ...]] = (
    Convergence,
    Outcomes,
    Demand,
    Refusals,
    History,
    Leftovers,
    Agreement,
    Label,
    Audited,
    Logs,
    Outvoted,
    Quiet,
)
