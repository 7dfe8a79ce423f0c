"""A replica is stopped in an orderly way, and started again."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.watching.seeing import LogSince, gone
from chaos.world import World


class Stopped(Fault):
    """SIGTERM to an agent, which drains: it finishes its reads and commits, and sends new work elsewhere.

    No commit that was requested before is unknown; the next start has nothing to repair.
    """

    kind: ClassVar[str] = "stopped"
    aim: ClassVar[Aim] = Aim.REPLICA

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets
        node = world.cluster.node(target)
        pid, log = node.pid, LogSince(node)

        def drained() -> str | None:
            said = any(line["now"] == "stopping" for line in log.lines("state"))
            return (
                f"{target} has said that it stops, and process {pid} is gone" if said and gone(pid) else None
            )

        try:
            node.stop()
            yield shown(Signs(drained))
        finally:
            serve_again(world, target)
