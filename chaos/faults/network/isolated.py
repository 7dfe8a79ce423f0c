"""A replica loses everybody."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.network.cutting import Dropped
from chaos.faults.reviving import serve_again, there
from chaos.faults.signs import Signs, shown
from chaos.watching.seeing import silent, status
from chaos.world import World


class Isolated(Fault):
    """A replica gets no packet of its peers, of ZooKeeper and of clients, and they get none of it.

    It suspends itself, and its session ends. The others decide what it has left open, and go on with the
    clients. It catches up afterwards, and acknowledges nothing that was aborted meanwhile.
    """

    kind: ClassVar[str] = "isolated"
    aim: ClassVar[Aim] = Aim.REPLICA

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets

        def unheard() -> str | None:
            if status(world, target) is not None:
                return None
            seen = silent(world, target)
            return f"{target} does not answer, and {seen}" if seen else None

        dropped = Dropped(world, [target])
        network = world.cluster.network
        network.isolate(target)
        try:
            yield shown(Signs(dropped.look, unheard))
        finally:
            if there(world, target):
                network.rejoin(target)
                serve_again(world, target)
