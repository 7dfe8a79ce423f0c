"""A catalog is cut on a disk."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

from chaos.faults.disks.catalogs import cut_end, spoilt
from chaos.faults.fault import Aim, Fault, Proof
from chaos.world import World


class CatalogTruncated(Fault):
    """A replica dies, its catalog is cut at a drawn length, and it is started again.

    It refuses to start, or ends soon, and names the damage. Its operator gives it an empty disk.
    """

    kind: ClassVar[str] = "catalog truncated"
    aim: ClassVar[Aim] = Aim.REPLICA
    loses_disk: ClassVar[bool] = True

    def inject(  # noqa: D102
        self, world: World, targets: Sequence[str], chosen: random.Random
    ) -> AbstractContextManager[Proof]:
        [target] = targets
        return spoilt(world, target, chosen, harm=cut_end)
