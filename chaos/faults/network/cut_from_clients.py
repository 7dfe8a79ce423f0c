"""A replica loses its clients."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.network.cutting import Dropped, cut, without_clients
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.world import World
from tidelock.testing import CLIENTS


class CutFromClients(Fault):
    """A replica and all clients get no packet of each other; its peers and ZooKeeper reach it.

    Clients go on at other replicas. It holds copies for the others, and what its clients had open ends with
    their leases.
    """

    kind: ClassVar[str] = "cut from clients"
    aim: ClassVar[Aim] = Aim.REPLICA

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets

        dropped = Dropped(world, [target])
        try:
            with cut(world, [(target, CLIENTS)]):
                yield shown(Signs(dropped.look, without_clients(world, target)))
        finally:
            serve_again(world, target)
