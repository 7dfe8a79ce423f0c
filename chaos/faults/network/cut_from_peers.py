"""A replica loses all other replicas."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.network.cutting import Dropped, cut, without
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.watching.seeing import others
from chaos.world import World


class CutFromPeers(Fault):
    """A replica and all others get no packet of each other; ZooKeeper and clients reach all of them.

    It finds no copies for its commits, and refuses them or leaves them to others; it follows the log as far
    as it has the parts, and says that it is blocked. The others commit without it.
    """

    kind: ClassVar[str] = "cut from peers"
    aim: ClassVar[Aim] = Aim.REPLICA

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets
        peers = others(world, target)
        dropped = Dropped(world, [target, *peers])
        try:
            with cut(world, [(target, peer) for peer in peers]):
                yield shown(Signs(dropped.look, without(world, target, peers)))
        finally:
            serve_again(world, target)
