"""The end of all faults, whatever has become of them, and the wait until the cluster is well again."""

from __future__ import annotations

import time
from typing import Final

from chaos.record.violation import Violation
from chaos.record.violations import Violations
from chaos.watching.statuses import until_caught_up
from chaos.watching.waiting import comes_true
from chaos.world import World
from tidelock.errors import TidelockError

#: Commits that are demanded when all is healed. The time for them is that of some stalls.
COMMITS: Final = 10
_STALLS: Final = 4
CHECK: Final = "healing"


def heal(world: World, violations: Violations) -> None:
    """Undo whatever a fault may have left: cuts, pauses, wrong clocks, servers that are down.

    Faults heal themselves; this is for those that could not.
    """
    cluster = world.cluster
    cluster.network.heal()
    for name in [*cluster.zookeepers, *cluster.replicas]:
        node = cluster.node(name)
        try:
            if node.running:
                node.resume()
            else:
                node.start(wait=False)
            if name in cluster.replicas:
                node.set_clock(0.0)
        except (TidelockError, OSError) as error:
            violations.add(Violation(CHECK, "a node can be healed", f"{name}: {error}", time.monotonic_ns()))


def converge(world: World, *, timeout_s: float) -> None:
    """Wait until all replicas serve and are at the end of the log; the journal tells how long it took.

    Clients still run, so the end of the log is where it was at the begin of the wait.
    """
    begin_s = time.monotonic()
    lacking = until_caught_up(world, world.cluster.replicas, timeout_s=timeout_s)
    world.journal.note("converged", seconds=round(time.monotonic() - begin_s, 3), lacking=lacking or None)


def commit_again(world: World, violations: Violations) -> None:
    """Demand that clients commit again."""
    before, timeout_s = world.journal.count("write"), _STALLS * world.stall_max_s
    if not comes_true(lambda: world.journal.count("write") >= before + COMMITS, timeout_s):
        made = world.journal.count("write") - before
        story = f"{made} commits in {timeout_s:.0f} s after all was healed, {COMMITS} are demanded"
        violations.add(Violation(CHECK, "I14 LIVE", story, time.monotonic_ns()))
