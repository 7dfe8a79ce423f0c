"""All servers of ZooKeeper are restarted, one after the other."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.world import World


class ZooKeeperRollingRestart(Fault):
    """Each server is stopped and started again when the one before it serves; the leader is among them.

    Commits wait for the election. No replica loses its session, since it finds another server.
    """

    kind: ClassVar[str] = "rolling restart of ZooKeeper"
    aim: ClassVar[Aim] = Aim.ALL
    harms: ClassVar[bool] = False
    alone: ClassVar[bool] = True
    lasts_s: ClassVar[tuple[float, float]] = (0.0, 2.0)

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del targets
        order = list(world.cluster.zookeepers)
        chosen.shuffle(order)
        before = {server: world.cluster.node(server).pid for server in order}

        def restarted() -> str | None:
            now = {server: world.cluster.node(server).pid for server in order}
            done = all(now[server] not in {None, before[server]} for server in order)
            leader = world.cluster.leader()
            return f"processes {before} have become {now}, and {leader} leads" if done and leader else None

        try:
            for server in order:
                world.cluster.node(server).stop()
                serve_again(world, server)
            yield shown(Signs(restarted))
        finally:
            serve_again(world, *order)
