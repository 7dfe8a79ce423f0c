"""A bit of a pack changes on a disk."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

from chaos.faults.disks.rotting import flip_bit, rotten
from chaos.faults.fault import Aim, Fault, Proof
from chaos.world import World


class PackFlipped(Fault):
    """One bit of a small part in a pack is another one; the other parts of the pack are whole.

    Nobody is shown the wrong bytes: the replica finds them when they are read, by a reader, a peer or the
    scrubber, and fetches the part again from another replica.
    """

    kind: ClassVar[str] = "bit flip in a pack"
    aim: ClassVar[Aim] = Aim.REPLICA
    loses_disk: ClassVar[bool] = True
    flips_bits: ClassVar[bool] = True

    def inject(  # noqa: D102
        self, world: World, targets: Sequence[str], chosen: random.Random
    ) -> AbstractContextManager[Proof]:
        [target] = targets
        return rotten(world, target, chosen, folder="packs", harm=flip_bit)
