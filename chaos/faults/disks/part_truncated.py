"""A part is cut on a disk."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

from chaos.faults.disks.rotting import rotten, truncate
from chaos.faults.fault import Aim, Fault, Proof
from chaos.world import World


class PartTruncated(Fault):
    """The end of a part in a file of its own is gone.

    Nobody is shown the wrong bytes: the replica finds them when they are read, by a reader, a peer or the
    scrubber, and fetches the part again from another replica.
    """

    kind: ClassVar[str] = "part truncated"
    aim: ClassVar[Aim] = Aim.REPLICA
    loses_disk: ClassVar[bool] = True

    def inject(  # noqa: D102
        self, world: World, targets: Sequence[str], chosen: random.Random
    ) -> AbstractContextManager[Proof]:
        [target] = targets
        return rotten(world, target, chosen, folder="parts", harm=truncate)
