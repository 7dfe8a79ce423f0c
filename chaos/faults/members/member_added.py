"""A member joins, and leaves again."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.members.members import added, member, removed
from chaos.faults.reviving import there
from chaos.faults.signs import Signs, shown
from chaos.world import World


class MemberAdded(Fault):
    """A fresh replica is registered and started: it clones under load. Later it is drained and removed.

    Nobody else notices. The cluster has as many members as before when it is healed.
    """

    kind: ClassVar[str] = "member added"
    aim: ClassVar[Aim] = Aim.ALL
    harms: ClassVar[bool] = False
    alone: ClassVar[bool] = True

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del targets, chosen
        fresh = added(world, world.cluster.add)

        def joined() -> str | None:
            return f"the others see {fresh} serve" if member(world, fresh) == "serving" else None

        try:
            yield shown(Signs(joined))
        finally:
            if there(world, fresh):
                removed(world, fresh)
