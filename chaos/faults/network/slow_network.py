"""A replica sends slowly."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again, there
from chaos.faults.signs import Signs, shown
from chaos.world import World
from tidelock.errors import TidelockError
from workloads.agents import get

#: Bytes per second of a slowed replica, at least and at most.
RATES: Final = (60_000, 300_000)
ANSWER_TIMEOUT_S: Final = 30.0
#: Bytes that a slowed replica sends at once.
BURST_BYTES: Final = 32 << 10


class SlowNetwork(Fault):
    """A replica sends 60 to 300 kB per second, to all others together.

    It answers late. Commits count the copies of others, readers may have to wait for it, and nobody else.
    """

    kind: ClassVar[str] = "slow network"
    aim: ClassVar[Aim] = Aim.REPLICA

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        [target] = targets
        rate = chosen.randint(*RATES)
        network = world.cluster.network

        def slow() -> str | None:
            found = _rate(world, target)
            if found is None or found > 2 * rate or not (count := network.held_back(target)):
                return None
            return f"{target} sends {found:.0f} bytes per second, and {count} packets had to wait"

        network.slow(target, rate)
        try:
            yield shown(Signs(slow))
        finally:
            if there(world, target):
                network.slow(target, 0)
                serve_again(world, target)


def _rate(world: World, replica: str) -> float | None:
    """Return the bytes per second of the largest answer, the API's description; None without an answer."""
    begin = time.monotonic()
    try:
        url = f"{world.cluster.url(replica)}/api/v1/openapi.json"
        size = len(get(url, timeout_s=ANSWER_TIMEOUT_S, token=world.cluster.secret))
    except TidelockError:
        return None
    return (size - BURST_BYTES) / (time.monotonic() - begin)
