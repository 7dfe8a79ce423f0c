"""A replica and ZooKeeper hear each other in one direction only."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.network.cutting import Dropped, cut, without_zookeeper
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.world import World


class OneWayCutFromZooKeeper(Fault):
    """Packets of a replica to all servers of ZooKeeper are dropped, or those of the servers to it.

    In the one direction its requests are lost. In the other one they are carried out and not answered, and it
    must not take a commit without an answer for a refused one. It suspends itself before its session can have
    ended for the others, which go on.
    """

    kind: ClassVar[str] = "one-way cut from ZooKeeper"
    aim: ClassVar[Aim] = Aim.REPLICA

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        [target] = targets
        servers = world.cluster.zookeepers
        unheard = chosen.choice([True, False])
        ways = [(target, server) if unheard else (server, target) for server in servers]
        # The side that should receive counts.
        dropped = Dropped(world, servers if unheard else [target])
        try:
            with cut(world, ways, one_way=True):
                yield shown(Signs(dropped.look, without_zookeeper(world, target)))
        finally:
            serve_again(world, target)
