"""A replica sends slowly."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again, there
from chaos.faults.signs import Signs
from chaos.world import World
from tidelock.errors import TidelockError
from workloads.agents import get

#: Bytes per second of a slowed replica, at least and at most.
RATES: Final = (20_000, 200_000)
#: A transfer must have been so many times as slow as before, at least.
SLOWER: Final = 3.0
ANSWER_TIMEOUT_S: Final = 30.0


class SlowNetwork(Fault):
    """A replica sends 20 to 200 kB per second, to all others together.

    It answers late. Commits count the copies of others, readers may have to wait for it, and nobody else.
    """

    kind: ClassVar[str] = "slow network"
    aim: ClassVar[Aim] = Aim.REPLICA

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:  # noqa: D102
        [target] = targets
        rate = chosen.randint(*RATES)
        before = _transfer(world, target)

        def slow() -> str | None:
            now = _transfer(world, target)
            if before is None or now is None or now < SLOWER * before:
                return None
            return f"a description of the API takes {now:.2f} s instead of {before:.2f} s at {rate} B/s"

        world.cluster.network.slow(target, rate)
        try:
            yield Signs(slow)
        finally:
            if there(world, target):
                world.cluster.network.slow(target, 0)
                serve_again(world, target)


def _transfer(world: World, replica: str) -> float | None:
    """Return how long the largest answer takes that never changes, in seconds; None without an answer."""
    begin = time.monotonic()
    try:
        url = f"{world.cluster.url(replica)}/api/v1/openapi.json"
        get(url, timeout_s=ANSWER_TIMEOUT_S, token=world.cluster.secret)
    except TidelockError:
        return None
    return time.monotonic() - begin
