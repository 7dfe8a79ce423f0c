"""A wall clock jumps."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from chaos.faults.clocks.clocks import ahead, right
from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import there
from chaos.faults.signs import Signs, shown
from chaos.world import World

#: Seconds that a clock may jump; the largest lie behind and before all retentions.
OFFSETS_S: Final = (7.0, 60.0, 3_600.0, 3 * 86_400.0, 40 * 86_400.0)


class ClockWrong(Fault):
    """The wall clock of a replica jumps by seconds to days, forward or back, and later to the true time.

    The other clocks outvote it: no lease, no history and no label ends early, and commits get right times.
    """

    kind: ClassVar[str] = "clock wrong"
    aim: ClassVar[Aim] = Aim.REPLICA
    harms: ClassVar[bool] = False

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        [target] = targets
        offset_s = chosen.choice(OFFSETS_S) * chosen.choice((1, -1))

        def wrong() -> str | None:
            found = ahead(world, target)
            return (
                f"{target} is {found:.0f} s ahead of the others" if found and right(found, offset_s) else None
            )

        try:
            world.cluster.node(target).set_clock(offset_s)
            yield shown(Signs(wrong))
        finally:
            if there(world, target):
                world.cluster.node(target).set_clock(0.0)
