"""A replica sends slowly."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from chaos.faults.fault import Aim, Fault, Proof
from chaos.faults.reviving import serve_again, there
from chaos.faults.signs import Signs
from chaos.world import World
from tidelock.errors import TidelockError
from workloads.agents import get

#: Bytes per second of a slowed replica, at least and at most.
RATES: Final = (60_000, 300_000)
#: A transfer must have been so many times as slow as before, at least.
SLOWER: Final = 3.0
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
        before = _transfer(world, target)

        def slow() -> str | None:
            now = _transfer(world, target)
            if before is None or now is None or now.seconds < SLOWER * before.seconds or now.rate > 2 * rate:
                return None
            return f"{target} sends {now.size} bytes in {now.seconds:.2f} s, before in {before.seconds:.2f} s"

        world.cluster.network.slow(target, rate)
        try:
            yield Signs(slow)
        finally:
            if there(world, target):
                world.cluster.network.slow(target, 0)
                serve_again(world, target)


@dataclass(frozen=True, slots=True)
class _Transfer:
    """An answer: bytes, and how long it took."""

    size: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes per second, without those that a brake lets pass at once."""
        return (self.size - BURST_BYTES) / self.seconds


def _transfer(world: World, replica: str) -> _Transfer | None:
    """Ask for the largest answer that never changes, the description of the API; None if it does not come."""
    begin = time.monotonic()
    try:
        url = f"{world.cluster.url(replica)}/api/v1/openapi.json"
        size = len(get(url, timeout_s=ANSWER_TIMEOUT_S, token=world.cluster.secret))
    except TidelockError:
        return None
    return _Transfer(size, time.monotonic() - begin)
