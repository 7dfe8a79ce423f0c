"""A disk is lost, and replaced by an empty one."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again, there
from chaos.faults.signs import Signs
from chaos.watching.seeing import views
from chaos.world import World


class DiskReplaced(Fault):
    """A replica dies with all its data, and starts later on an empty disk with its old id.

    It applies the log again, or clones where the log begins later, gets the parts of all peers, and serves
    when it has what is visible.
    """

    kind: ClassVar[str] = "disk replaced"
    aim: ClassVar[Aim] = Aim.REPLICA
    loses_disk: ClassVar[bool] = True

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets
        node = world.cluster.node(target)
        before = _disks(world, target)

        def on_another() -> str | None:
            found = sorted(_disks(world, target) - before)
            return f"{target} was on disk {', '.join(sorted(before))} and is on {found[0]}" if found else None

        node.kill()
        try:
            yield Signs(on_another)
        finally:
            if there(world, target):
                node.replace(start=False)
                serve_again(world, target)


def _disks(world: World, replica: str) -> set[str]:
    """Return the ids of a replica's data directory that others have seen: one, but for a moment."""
    return {str(row["disk"]) for _, row in views(world, replica) if row["disk"]}
