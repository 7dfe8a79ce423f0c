"""A replica's disk is full."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.watching.seeing import status
from chaos.world import World


class DiskFull(Fault):
    """No byte is left on the disk of a replica; what it deletes itself is free again.

    It refuses rows and copies, says that it is full, and begins no transaction while another replica has
    room. With room it goes on by itself.
    """

    kind: ClassVar[str] = "disk full"
    aim: ClassVar[Aim] = Aim.REPLICA
    hurts_disk: ClassVar[bool] = True
    lasts_s: ClassVar[tuple[float, float]] = (4.0, 12.0)

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets
        node = world.cluster.node(target)

        def full() -> str | None:
            rows = (status(world, target) or {}).get("replicas", [])
            said = any(row["id"] == target and row["phase"] == "full" for row in rows)
            return f"{target} says that it is full, with {node.disk_free()} bytes free" if said else None

        try:
            with node.full_disk():
                yield shown(Signs(full))
        finally:
            serve_again(world, target)
