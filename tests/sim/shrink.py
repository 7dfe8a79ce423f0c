"""Makes a plan that fails smaller: fewer faults, fewer clients, fewer transactions, and it still fails.

Greedy: of all plans that are a little smaller the first that fails as well is taken, and so on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, cast

from tests.sim.plan import RunPlan

#: So many runs a shrinking may take.
RUNS_MAX: Final = 80


def shrink(plan: RunPlan, fails: Callable[[RunPlan], bool], *, runs_max: int = RUNS_MAX) -> RunPlan:
    """Return a plan that fails like this one and is as small as could be found.

    Args:
        plan: It fails.
        fails: Carries a plan out and tells whether it fails in the same way.
        runs_max: So often ``fails`` is asked at most.
    """
    runs = 0
    while True:
        for smaller in _smaller(plan):
            if runs == runs_max:
                return plan
            runs += 1
            if fails(smaller):
                plan = smaller
                break
        else:
            return plan


def _smaller(plan: RunPlan) -> Iterator[RunPlan]:
    """Plans with less of one thing, those with much less first."""
    faults = plan.faults
    if len(faults) > 1:
        half = len(faults) // 2
        yield replace(plan, faults=faults[:half])
        yield replace(plan, faults=faults[half:])
    for rate in ("requests", "loss", "twice", "late"):
        if getattr(plan, rate):
            yield replace(plan, **cast("dict[str, Any]", {rate: 0.0}))
    for number in range(len(faults)):
        yield replace(plan, faults=faults[:number] + faults[number + 1 :])
    if plan.readers:
        yield replace(plan, readers=0)
    if plan.writers > 1:
        yield replace(plan, writers=1)
        yield replace(plan, writers=plan.writers - 1)
    if plan.changers:
        yield replace(plan, changers=0)
        yield replace(plan, changers=plan.changers - 1)
    if plan.compaction:
        yield replace(plan, compaction=False)
    if plan.history_s:
        yield replace(plan, history_s=0.0)
    if plan.transactions > 1:
        yield replace(plan, transactions=plan.transactions // 2)
        yield replace(plan, transactions=plan.transactions - 1)
    if plan.manifests:
        yield replace(plan, manifests=False)
    if plan.tight:
        yield replace(plan, tight=False)
    if plan.epoch_limit < 1000:
        yield replace(plan, epoch_limit=1000)
    if len(plan.request_kinds) > 1 and plan.requests:
        for kind in plan.request_kinds:
            yield replace(plan, request_kinds=tuple(other for other in plan.request_kinds if other != kind))
    if plan.replicas > max(plan.copies, 2):
        yield replace(plan, replicas=plan.replicas - 1)
