"""``python -m tests.sim --seed 17``: one run again. ``--seeds 500``: many. Failures are shrunk."""

from __future__ import annotations

import argparse
import contextlib
import functools
import secrets
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.sim.bugs import BUGS
from tests.sim.plan import RunPlan, draw
from tests.sim.shrink import shrink
from tests.sim.world import Result, simulate

Around = Callable[[], Any]

say = functools.partial(print, flush=True)


def command(plan: RunPlan, *, bug: str = "") -> str:
    """Return the command that repeats a run."""
    which = f"--seed {plan.seed}" if plan == draw(plan.seed) else f"--plan {shlex.quote(plan.to_json())}"
    return f"python -m tests.sim {which}" + (f" --bug {bug}" if bug else "")


def shrunk(found: Result, around: Around) -> RunPlan:
    """Return a smaller plan that violates the same."""
    names = {violation.invariant for violation in found.violations}

    def fails(plan: RunPlan) -> bool:
        again = simulate(plan, around=around, brief=True)
        return any(violation.invariant in names for violation in again.violations)

    return shrink(found.plan, fails)


def tell(found: Result, around: Around, bug: str) -> None:
    """Print a failure: what is wrong, how to see it again, and the smallest plan that shows it."""
    say(f"seed {found.plan.seed} FAILS; again: {command(found.plan, bug=bug)}")
    for violation in found.violations:
        say(f"  {violation.invariant}: {violation.what}")
    small = shrunk(found, around)
    say(f"  smaller ({found.plan.size} -> {small.size}): {command(small, bug=bug)}")
    for fault in small.faults:
        say(f"    at {fault.at_s} s {fault.kind} of replica {fault.target + 1} for {fault.length_s} s")


def main() -> int:
    """Run what is asked for; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="one run, told in full")
    which.add_argument("--plan", type=RunPlan.from_json, help="one run by its plan, told in full")
    which.add_argument("--seeds", type=int, default=20, help="so many runs")
    parser.add_argument("--first", type=int, help="first seed of many; a random one if left out")
    parser.add_argument("--trace", action="store_true", help="print what happened, and the agents' logs")
    parser.add_argument("--bug", choices=sorted(BUGS), default="", help="with this bug planted")
    asked = parser.parse_args()
    around: Around = BUGS[asked.bug] if asked.bug else contextlib.nullcontext
    if asked.seed is not None or asked.plan is not None:
        return _one(asked.plan or draw(asked.seed), around, asked)
    return _many(
        asked.seeds, secrets.randbelow(1 << 31) if asked.first is None else asked.first, around, asked.bug
    )


def _one(plan: RunPlan, around: Around, asked: argparse.Namespace) -> int:
    say(f"plan {plan.to_json()}")
    found = simulate(plan, keep_trace=asked.trace, around=around)
    for line in found.lines:
        say(line)
    say(f"trace {found.trace}, {found.virtual_s:.0f} virtual s, {found.counts}")
    if found.violations:
        tell(found, around, asked.bug)
    return 1 if found.violations else 0


def _many(count: int, first: int, around: Around, bug: str) -> int:
    started_s, virtual_s, failed = time.monotonic(), 0.0, 0
    totals: Counter[str] = Counter()
    say(f"{count} seeds from {first}: python -m tests.sim --seeds {count} --first {first}")
    for seed in range(first, first + count):
        found = simulate(draw(seed), around=around)
        virtual_s += found.virtual_s
        totals.update(found.counts)
        if found.violations:
            failed += 1
            tell(found, around, bug)
    took_s = time.monotonic() - started_s
    say(
        f"{count} seeds, {failed} failed; {count / took_s:.1f} seeds/s, {virtual_s / 3600:.2f} virtual hours "
        f"in {took_s:.0f} s; {dict(sorted(totals.items()))}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
