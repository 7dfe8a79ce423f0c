"""A pack is cut on a disk."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

from chaos.faults.disks.rotting import rotten, truncate
from chaos.faults.fault import Aim, Fault, Proof
from chaos.world import World


class PackTruncated(Fault):
    """A pack ends in the middle of one of its parts; the parts behind it are gone as well.

    Nobody is shown the wrong bytes: the replica finds them when they are read, by a reader, a peer or the
    scrubber, and fetches each part again from another replica.
    """

    kind: ClassVar[str] = "pack truncated"
    aim: ClassVar[Aim] = Aim.REPLICA
    loses_disk: ClassVar[bool] = True

    def inject(  # noqa: D102
        self, world: World, targets: Sequence[str], chosen: random.Random
    ) -> AbstractContextManager[Proof]:
        [target] = targets
        return rotten(world, target, chosen, folder="packs", harm=truncate)
