"""A replica loses all of ZooKeeper."""

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


class CutFromZooKeeper(Fault):
    """A replica and all servers of ZooKeeper get no packet of each other; clients and peers reach it.

    It suspends itself before its session can have ended for the others: it acknowledges nothing, and serves
    no snapshot as the newest one. The others go on.
    """

    kind: ClassVar[str] = "cut from ZooKeeper"
    aim: ClassVar[Aim] = Aim.REPLICA

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets
        servers = world.cluster.zookeepers
        dropped = Dropped(world, [target, *servers])
        try:
            with cut(world, [(target, server) for server in servers]):
                yield shown(Signs(dropped.look, without_zookeeper(world, target)))
        finally:
            serve_again(world, target)
