"""A replica is killed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.watching.seeing import gone, status
from chaos.world import World


class Killed(Fault):
    """SIGKILL to an agent and its workers; it is started again with its data.

    The other replicas go on. Requests that were under way end with an error, or with an unknown outcome,
    which is decided within the time that a home may be silent.
    """

    kind: ClassVar[str] = "killed"
    aim: ClassVar[Aim] = Aim.REPLICA

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets
        node = world.cluster.node(target)
        pid = node.pid

        def dead() -> str | None:
            refused = status(world, target) is None
            return f"process {pid} is gone and no request is answered" if gone(pid) and refused else None

        node.kill()
        try:
            yield shown(Signs(dead))
        finally:
            serve_again(world, target)
