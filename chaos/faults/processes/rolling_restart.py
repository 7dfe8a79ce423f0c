"""All replicas are restarted, one after the other, as for an upgrade."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again, there
from chaos.faults.signs import Signs, shown
from chaos.watching.seeing import status
from chaos.watching.waiting import until
from chaos.world import World


class RollingRestart(Fault):
    """Each replica is stopped in an orderly way and started again when the one before it serves.

    Commits go on all the time, at the replicas that run.
    """

    kind: ClassVar[str] = "rolling restart"
    aim: ClassVar[Aim] = Aim.ALL
    alone: ClassVar[bool] = True
    lasts_s: ClassVar[tuple[float, float]] = (0.0, 2.0)

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del targets
        order = list(world.cluster.replicas)
        chosen.shuffle(order)
        before = {replica: _boot(world, replica) for replica in order}

        def restarted() -> str | None:
            boots = {replica: _boot(world, replica) for replica in order}
            done = all(boots[replica] > before[replica] for replica in order)
            return f"boots {before} have become {boots}" if done else None

        try:
            for replica in order:
                world.cluster.node(replica).stop()
                serve_again(world, replica)
                _follow(world, replica)
            yield shown(Signs(restarted))
        finally:
            serve_again(world, *order)


def _boot(world: World, replica: str) -> int:
    return int((status(world, replica) or {}).get("boot", 0))


def _follow(world: World, replica: str) -> None:
    """Wait until a replica follows the log, as an operator does before the next one is stopped."""

    def follows() -> bool:
        rows = (status(world, replica) or {}).get("replicas", [])
        return any(row["id"] == replica and row["phase"] == "following" for row in rows)

    until(lambda: not there(world, replica) or follows(), what=f"{replica} follows the log")
