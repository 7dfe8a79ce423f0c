"""A replica's network loses packets."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.network.cutting import Dropped
from chaos.faults.reviving import serve_again, there
from chaos.faults.signs import Signs, shown
from chaos.world import World

#: Shares of the packets that are lost, at least and at most, in each direction.
SHARES: Final = (0.02, 0.25)


class LossyNetwork(Fault):
    """A replica loses 2 to 25 % of the packets that it gets and sends, drawn one by one.

    Its connections stay and are slow, sometimes for seconds. Commits count the copies of others.
    """

    kind: ClassVar[str] = "lossy network"
    aim: ClassVar[Aim] = Aim.REPLICA

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        [target] = targets
        network = world.cluster.network
        before = _sent_again(world, target)

        def sent_again() -> str | None:
            now = _sent_again(world, target)
            if before is None or now is None or now <= before:
                return None
            return f"{target} has sent {now - before} segments again"

        dropped = Dropped(world, [target])
        network.lose(target, chosen.uniform(*SHARES))
        try:
            yield shown(Signs(dropped.look, sent_again))
        finally:
            if there(world, target):
                network.lose(target, 0.0)
                serve_again(world, target)


def _sent_again(world: World, replica: str) -> int | None:
    """Return how many segments of TCP the network of a replica has sent again; None while it is dead."""
    try:
        text = Path(f"/proc/{world.cluster.node(replica).pid}/net/snmp").read_text(encoding="ascii")
    except OSError:
        return None
    names, numbers = (line.split() for line in text.splitlines() if line.startswith("Tcp:"))
    return int(numbers[names.index("RetransSegs")])
