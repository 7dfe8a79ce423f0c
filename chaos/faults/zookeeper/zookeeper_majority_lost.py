"""A majority of ZooKeeper is lost for some seconds."""

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
from tidelock.errors import TidelockError

#: How long a client asks for a transaction before it gives up, in seconds.
PATIENCE_S = 2.0


class ZooKeeperMajorityLost(Fault):
    """SIGKILL to so many servers that the others have no quorum; they come back with their data.

    Every replica suspends itself, begins no transaction and acknowledges no commit; what was requested before
    is unknown until the majority is back, and then decided. Snapshots that were taken go on.
    """

    kind: ClassVar[str] = "ZooKeeper majority lost"
    aim: ClassVar[Aim] = Aim.ALL
    halts: ClassVar[bool] = True
    alone: ClassVar[bool] = True
    lasts_s: ClassVar[tuple[float, float]] = (8.0, 20.0)

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del targets
        cluster = world.cluster
        lost = chosen.sample(cluster.zookeepers, len(cluster.zookeepers) // 2 + 1)
        halted = _Halted(world)
        try:
            for server in lost:
                cluster.node(server).kill()
            yield shown(Signs(halted.look))
        finally:
            serve_again(world, *lost, *cluster.replicas)


class _Halted:
    """Looks whether commits have ended: no replica begins a transaction, and none was acknowledged since."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._acknowledged: int | None = None

    def look(self) -> str | None:
        """Return what all replicas say; None unless a look before has found the same, and no commit since."""
        world = self._world
        states = {replica: (status(world, replica) or {}).get("state") for replica in world.cluster.replicas}
        if world.cluster.leader() is not None or set(states.values()) != {"suspended"}:
            self._acknowledged = None
            return None
        before, self._acknowledged = self._acknowledged, world.journal.count("write")
        if before != self._acknowledged or self._begins():
            return None
        return (
            f"no server leads, all replicas are suspended and begin nothing, and after {before} commits none"
        )

    def _begins(self) -> bool:
        """Return whether a replica begins a transaction."""
        for replica in self._world.cluster.replicas:
            with (
                contextlib.suppress(TidelockError),
                self._world.cluster.connect(replica, timeout_s=PATIENCE_S) as db,
                db.begin(fresh=True) as tx,
            ):
                return bool(tx.tid)
        return False
