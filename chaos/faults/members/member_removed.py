"""A member leaves, and another one joins."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.members.members import added, member, removed
from chaos.faults.signs import Signs, shown
from chaos.world import World


class MemberRemoved(Fault):
    """A replica is drained, stopped and removed for good; later a fresh one is added in its place.

    It begins no transaction once it drains, and clients go to others. No commit is lost with it.
    """

    kind: ClassVar[str] = "member removed"
    aim: ClassVar[Aim] = Aim.REPLICA
    alone: ClassVar[bool] = True
    loses_disk: ClassVar[bool] = True

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets

        def left() -> str | None:
            return f"the others say that {target} is removed" if member(world, target) == "removed" else None

        removed(world, target)
        try:
            yield shown(Signs(left))
        finally:
            added(world, world.cluster.add)
