"""A follower of ZooKeeper is paused."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.faults.zookeeper.ensemble import mode
from chaos.world import World


class ZooKeeperFollowerFrozen(Fault):
    """A server that does not lead is stopped where it is: the drawn one, or another if that leads.

    Its connections stay open and are silent. Agents that use it find another one within their sessions.
    """

    kind: ClassVar[str] = "ZooKeeper follower frozen"
    aim: ClassVar[Aim] = Aim.ZOOKEEPER
    harms: ClassVar[bool] = False

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        cluster = world.cluster
        leader = cluster.leader()
        order = [*targets, *cluster.zookeepers]
        server = next((name for name in order if name != leader), order[0])
        node = cluster.node(server)

        def frozen() -> str | None:
            now = cluster.leader()
            held = node.running and mode(world, server) is None and now not in {None, server}
            return f"{server} runs and does not answer, and {now} leads" if held else None

        node.pause()
        try:
            yield shown(Signs(frozen))
        finally:
            node.resume()
            serve_again(world, server)
