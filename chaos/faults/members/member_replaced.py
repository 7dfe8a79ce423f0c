"""A member dies for good, and another one takes its place."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.members.members import added, member
from chaos.faults.signs import Signs
from chaos.world import World


class MemberReplaced(Fault):
    """SIGKILL to a replica that never comes back; later a fresh one takes its place in one step, and clones.

    The others go on without it. No acknowledged commit is lost with its disk.
    """

    kind: ClassVar[str] = "member replaced"
    aim: ClassVar[Aim] = Aim.REPLICA
    alone: ClassVar[bool] = True
    loses_disk: ClassVar[bool] = True

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets
        cluster = world.cluster

        def left() -> str | None:
            return f"the others say that {target} is removed" if member(world, target) == "removed" else None

        cluster.node(target).kill()
        try:
            yield Signs(left)
        finally:
            added(world, lambda fresh: cluster.replace_member(target, fresh))
