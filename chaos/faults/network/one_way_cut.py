"""A replica is not heard by another one, which it hears."""

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


class OneWayCut(Fault):
    """Packets of the first replica to the second one are dropped; the other way they arrive.

    So requests of the second one are carried out, and their answers are lost; the first one learns of a push
    what it did not ask for. Both go on with the others.
    """

    kind: ClassVar[str] = "one-way cut"
    aim: ClassVar[Aim] = Aim.PAIR

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        first, second = targets
        dropped = Dropped(world, [second])
        try:
            with cut(world, [(first, second)], one_way=True):
                yield shown(Signs(dropped.look, without(world, second, [first])))
        finally:
            serve_again(world, *targets)
