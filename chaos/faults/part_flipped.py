"""A bit of a part changes on a disk."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.rotting import Place, flip_bit, rotten
from chaos.world import World


class PartFlipped(Fault):
    """One bit of a part in a file of its own is another one.

    Nobody is shown the wrong bytes: the replica finds them when they are read, by a reader, a peer or the
    scrubber, and fetches the part again from another replica.
    """

    kind: ClassVar[str] = "bit flip in a part"
    aim: ClassVar[Aim] = Aim.REPLICA
    loses_disk: ClassVar[bool] = True

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        [target] = targets

        def harm(place: Place) -> None:
            flip_bit(place, chosen)

        with rotten(world, target, chosen, folder="parts", harm=harm) as proof:
            yield proof
