"""A replica and its clients hear each other in one direction only."""

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


class OneWayCutFromClients(Fault):
    """Packets of all clients to a replica are dropped, or those of the replica to them.

    In the one direction requests are lost. In the other one those on open connections are carried out and not
    answered: a client must not take a commit without an answer for a refused one. It finds out the outcome at
    another replica, and goes on there.
    """

    kind: ClassVar[str] = "one-way cut from clients"
    aim: ClassVar[Aim] = Aim.REPLICA

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        [target] = targets
        way = chosen.choice([(target, CLIENTS), (CLIENTS, target)])
        dropped = Dropped(world, [target])
        try:
            with cut(world, [way], one_way=True):
                yield shown(Signs(dropped.look, without_clients(world, target)))
        finally:
            serve_again(world, target)
