"""The product holds its invariants under the faults of drawn plans: fixed seeds, and fresh ones."""

from __future__ import annotations

import secrets
import sys

import pytest

from tests.sim.__main__ import command
from tests.sim.plan import KINDS, draw
from tests.sim.world import simulate
from tidelock.csnlog.testing.memory_store import RequestFault as Lost

#: Seeds that every run has.
FIXED = (0, 5, 8, 12, 38, 43)
#: Seeds that have found something (docs/track-record.md).
FOUND = (407342012, 436030554, 561003393, 617467363, 883383154)
#: Fresh seeds of every run.
FRESH = 2
#: Of the long form, in blocks of so many: a block that fails does not keep the others from running.
BLOCKS, PER_BLOCK = 4, 10


def hold(seed: int) -> None:
    """Carry a seed out, which must go well."""
    plan = draw(seed)
    found = simulate(plan)
    assert not found.violations, f"{command(plan)}: {found.violations}"


def hold_fresh(count: int) -> None:
    """Carry out fresh seeds; the output of a failure names them."""
    for _ in range(count):
        seed = secrets.randbelow(1 << 31)
        sys.stdout.write(f"{command(draw(seed))}\n")
        hold(seed)


@pytest.mark.scenario("S01", "S02", "S05", "S06", "S28", "S73")
@pytest.mark.parametrize("seed", [*FIXED, *FOUND])
@pytest.mark.few(4)
def test_the_product_holds_its_invariants_under_faults(seed: int) -> None:
    """All invariants under faults, and convergence afterwards."""
    hold(seed)


def test_the_fixed_seeds_have_every_kind_of_fault() -> None:
    """They have each setting of a plan too: a new setting needs a seed that has it."""
    plans = [draw(seed) for seed in FIXED]
    assert {fault.kind for plan in plans for fault in plan.faults} == set(KINDS)
    assert {kind for plan in plans if plan.requests for kind in plan.request_kinds} == set(Lost.__members__)
    assert {plan.replicas for plan in plans} == {2, 3, 4}
    assert {plan.copies for plan in plans} == {2, 3}
    assert any(plan.changers > 1 and plan.readers and plan.compaction and plan.history_s for plan in plans)
    for kind in ("replace", "strike"):  # a replica that has to clone, since history is collected
        assert any(plan.history_s and kind in {fault.kind for fault in plan.faults} for plan in plans), kind
    for name in (
        "manifests",
        "tight",
        "loss",
        "twice",
        "late",
        "compaction",
        "history_s",
        "whole",
        "definers",
    ):
        assert {bool(getattr(plan, name)) for plan in plans} == {False, True}, name
    assert any(plan.whole and plan.crowd > 1 and not plan.tight for plan in plans)


def test_the_product_holds_under_fresh_seeds() -> None:
    """The seeds differ in every run."""
    hold_fresh(FRESH)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_product_holds_under_many_seeds(block: int) -> None:
    """The long form: forty."""
    hold_fresh(PER_BLOCK)
