"""The leader of ZooKeeper dies."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.watching.seeing import gone
from chaos.watching.waiting import NOTICE_TIMEOUT_S, until
from chaos.world import World


class ZooKeeperLeaderKilled(Fault):
    """SIGKILL to the server that leads, whichever was drawn; it comes back with its data.

    The others elect another leader. Commits wait for that; no replica loses its session, refuses or stops.
    """

    kind: ClassVar[str] = "ZooKeeper leader killed"
    aim: ClassVar[Aim] = Aim.ZOOKEEPER
    harms: ClassVar[bool] = False

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del targets, chosen
        cluster = world.cluster
        until(cluster.leader, what="a leader of ZooKeeper", timeout_s=NOTICE_TIMEOUT_S)
        # It may be lost again at once to another fault: then any server that was drawn is as good.
        leader = cluster.leader() or cluster.zookeepers[0]
        node = cluster.node(leader)
        pid = node.pid

        def elected() -> str | None:
            now = cluster.leader()
            return f"{leader} is dead and {now} leads" if gone(pid) and now not in {None, leader} else None

        node.kill()
        try:
            yield shown(Signs(elected))
        finally:
            serve_again(world, leader)
