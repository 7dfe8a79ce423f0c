"""A disk is lost, and replaced by an empty one."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again, there
from chaos.faults.seeing import LogSince
from chaos.faults.signs import Signs
from chaos.world import World


class DiskReplaced(Fault):
    """A replica dies with all its data, and starts later on an empty disk with its old id.

    It clones: it gets the catalog of a peer and the parts of all peers, and serves when it has what is
    visible.
    """

    kind: ClassVar[str] = "disk replaced"
    aim: ClassVar[Aim] = Aim.REPLICA
    loses_disk: ClassVar[bool] = True

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets
        node = world.cluster.node(target)
        log = LogSince(node)

        def cloned() -> str | None:
            sources = [line["source"] for line in log.lines("clone_installed")]
            return f"{target} has got the catalog of {sources[-1]}" if sources else None

        node.kill()
        try:
            yield Signs(cloned)
        finally:
            if there(world, target):
                node.replace(start=False)
                serve_again(world, target)
