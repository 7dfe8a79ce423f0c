"""A part is cut on a disk."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.rotting import Place, rotten
from chaos.world import World


class PartTruncated(Fault):
    """The end of a part in a file of its own is gone.

    Nobody is shown the wrong bytes: the replica finds them when they are read, by a reader, a peer or the
    scrubber, and fetches the part again from another replica.
    """

    kind: ClassVar[str] = "part truncated"
    aim: ClassVar[Aim] = Aim.REPLICA
    loses_disk: ClassVar[bool] = True

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        [target] = targets

        def harm(place: Place) -> None:
            os.truncate(place.file, chosen.randrange(place.length))

        with rotten(world, target, chosen, folder="parts", harm=harm) as proof:
            yield proof
