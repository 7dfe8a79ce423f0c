"""The addresses of a cluster's own network. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network
from typing import Final

#: Each cluster gets a network of 254 addresses out of this one.
_RANGE: Final = IPv4Network("10.213.0.0/16")
_PREFIX_BITS: Final = 24


def used(routes: str) -> Iterator[IPv4Network]:
    """Yield the networks to which this machine has routes, from `ip -json -4 route show table all`."""
    for route in json.loads(routes):
        if route["dst"] != "default":
            yield IPv4Network(route["dst"])


def free(taken: Iterable[IPv4Network]) -> IPv4Network | None:
    """Return a network that overlaps with none of these; None if there is none."""
    others = [*taken]
    for candidate in _RANGE.subnets(new_prefix=_PREFIX_BITS):
        if not any(candidate.overlaps(other) for other in others):
            return candidate
    return None
