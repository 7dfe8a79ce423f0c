"""So many replicas die at once that no commit has its copies."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Look, Signs, shown
from chaos.watching.seeing import gone
from chaos.world import World

#: How long no commit has to be acknowledged for the proof, in seconds; clients write all the time.
QUIET_S: Final = 3.0


class ReplicasLost(Fault):
    """SIGKILL to all replicas but `copies` - 1 at the same time; they are started again with their data.

    Those that are left acknowledge no commit, and refuse it or say that its outcome is unknown. Snapshots
    that were taken there go on.
    """

    kind: ClassVar[str] = "replicas lost"
    aim: ClassVar[Aim] = Aim.ALL
    halts: ClassVar[bool] = True
    alone: ClassVar[bool] = True
    lasts_s: ClassVar[tuple[float, float]] = (4.0, 12.0)

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del targets
        there = world.cluster.replicas
        lost = chosen.sample(there, len(there) - world.copies + 1)
        pids = {replica: world.cluster.node(replica).pid for replica in lost}

        def dead() -> str | None:
            return f"processes of {', '.join(lost)} are gone" if all(map(gone, pids.values())) else None

        try:
            for replica in lost:
                world.cluster.node(replica).kill()
            yield shown(Signs(dead, _quiet(world)))
        finally:
            serve_again(world, *lost)


def _quiet(world: World) -> Look:
    """Return what looks whether no commit was acknowledged for a while."""
    since_s, acknowledged = time.monotonic(), world.journal.count("write")

    def look() -> str | None:
        nonlocal since_s, acknowledged
        now_s, before = time.monotonic(), acknowledged
        acknowledged = world.journal.count("write")
        if acknowledged != before:
            since_s = now_s
        if now_s - since_s < QUIET_S:
            return None
        return f"after {acknowledged} commits none for {QUIET_S:.0f} s"

    return look
