"""A replica's disk is slow."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.disks import tracing
from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.world import World


class SlowDisk(Fault):
    """Each fsync of a replica waits for 0.1 to 1 s before it is carried out, and its agent is slower besides.

    strace stops it at every system call: a commit takes two to three times as much of its processor time.

    Commits count the copies of others; those of its own transactions take as long as its disk does.
    """

    kind: ClassVar[str] = "slow disk"
    aim: ClassVar[Aim] = Aim.REPLICA
    hurts_disk: ClassVar[bool] = True

    @classmethod
    def lack(cls) -> str:
        """Return why it cannot be injected here; "" = it can."""
        return tracing.lack()

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        [target] = targets
        delay_us = chosen.choice((100_000, 300_000, 1_000_000))
        try:
            with tracing.injected(world.cluster.node(target), f"delay_enter={delay_us}") as traced:

                def slowed() -> str | None:
                    count = traced.count()
                    return f"{count} fsyncs took {delay_us / 1e6} s longer" if count else None

                yield shown(Signs(slowed))
        finally:
            serve_again(world, target)
