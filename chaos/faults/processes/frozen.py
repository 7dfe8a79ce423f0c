"""A replica is paused for longer than its session and its leases."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again, there
from chaos.faults.signs import Signs, shown
from chaos.watching.seeing import silent
from chaos.world import World


class Frozen(Fault):
    """All processes of a replica are stopped where they are, until its session of ZooKeeper has ended.

    It knows nothing of that when it goes on: it must acknowledge nothing that the others have aborted
    meanwhile, and show no snapshot as the newest one that is not.
    """

    kind: ClassVar[str] = "frozen"
    aim: ClassVar[Aim] = Aim.REPLICA

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets
        node = world.cluster.node(target)
        node.pause()
        try:
            # Without ZooKeeper no session ends; then nothing is proven.
            yield shown(Signs(lambda: silent(world, target)))
        finally:
            if there(world, target):
                node.resume()
                serve_again(world, target)
