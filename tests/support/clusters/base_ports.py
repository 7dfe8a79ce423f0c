"""Base ports for clusters of tests that ask for fixed ports."""

from __future__ import annotations

import random

from tidelock.cluster_layout import DATA_OFFSET
from tidelock.ports import HOST, in_use


def free_base_port(replicas: int) -> int:
    """Return a base port after which the ports of so many replicas are free now.

    It is below all ports that clusters choose by themselves, so that no cluster of another test takes them.
    """
    numbers = [offset + number for number in range(replicas) for offset in (0, DATA_OFFSET)]
    for base in random.sample(range(12_000, 18_000), 1_000):
        if not any(in_use(HOST, base + number) for number in numbers):
            return base
    raise AssertionError(f"no {replicas} ports in a row are free between 12,000 and 18,000")
