"""A replica loses the server of ZooKeeper that it is connected to."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.network.cutting import Dropped, cut
from chaos.faults.reviving import serve_again
from chaos.faults.signs import Signs, shown
from chaos.faults.zookeeper.ensemble import connected
from chaos.watching.waiting import NOTICE_TIMEOUT_S, until
from chaos.world import World


class CutFromOneServer(Fault):
    """A replica and the server of its connection get no packet of each other.

    It finds another server within its session, and may be suspended for a moment until then.
    """

    kind: ClassVar[str] = "cut from one server of ZooKeeper"
    aim: ClassVar[Aim] = Aim.REPLICA

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        del chosen
        [target] = targets
        found: list[str] = []

        def at_server() -> bool:
            found[:] = [name for name in [connected(world, target)] if name]
            return bool(found)

        until(at_server, what=f"a connection of {target} to ZooKeeper", timeout_s=NOTICE_TIMEOUT_S)
        [server] = found

        def moved() -> str | None:
            now = connected(world, target)
            return f"{target} has left {server} for {now}" if now not in {None, server} else None

        dropped = Dropped(world, [target, server])
        try:
            with cut(world, [(target, server)]):
                yield shown(Signs(dropped.look, moved))
        finally:
            serve_again(world, target)
