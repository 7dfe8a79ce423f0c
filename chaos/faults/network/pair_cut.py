"""Two replicas lose each other, and nobody else."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.network.cutting import Dropped, cut, without
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.world import World


class PairCut(Fault):
    """Two replicas get no packet of each other; ZooKeeper, clients and the other replicas reach both.

    Each gets the parts of the other one from a third replica, and commits with copies there.
    """

    kind: ClassVar[str] = "pair cut"
    aim: ClassVar[Aim] = Aim.PAIR

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        first, second = targets
        dropped = Dropped(world, targets)
        try:
            with cut(world, [(first, second)]):
                yield shown(Signs(dropped.look, without(world, first, [second])))
        finally:
            serve_again(world, *targets)
