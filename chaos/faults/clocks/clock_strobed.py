"""A wall clock jumps to and fro."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from chaos.faults.clocks.clocks import ahead, right
from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import there
from chaos.faults.signs import Signs, shown
from chaos.world import World

#: Seconds that a clock is off in between.
OFFSETS_S: Final = (60.0, 3_600.0, 3 * 86_400.0)
#: Seconds between two jumps, at least and at most.
PAUSES_S: Final = (0.05, 1.5)


class ClockStrobed(Fault):
    """The wall clock of a replica jumps forward and back, again and again, with short pauses.

    As with one jump the others outvote it, whatever it shows at the moment when it is asked.
    """

    kind: ClassVar[str] = "clock strobed"
    aim: ClassVar[Aim] = Aim.REPLICA
    harms: ClassVar[bool] = False

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        [target] = targets
        offset_s = chosen.choice(OFFSETS_S) * chosen.choice((1, -1))
        node, ended = world.cluster.node(target), threading.Event()

        def strobe() -> None:
            while True:
                for jump_s in (offset_s, 0.0):
                    node.set_clock(jump_s)
                    if ended.wait(chosen.uniform(*PAUSES_S)):
                        return

        def showed(wanted_s: float) -> str | None:
            found = ahead(world, target)
            return (
                f"{target} was {found:.0f} s ahead" if found is not None and right(found, wanted_s) else None
            )

        thread = threading.Thread(target=strobe, name=f"clock of {target}")
        thread.start()
        try:
            # In this order: the true time alone proves nothing.
            wrong = Signs(lambda: showed(offset_s))
            yield shown(Signs(wrong.seen, lambda: showed(0.0) if wrong.seen() else None))
        finally:
            ended.set()
            thread.join()
            if there(world, target):
                node.set_clock(0.0)
