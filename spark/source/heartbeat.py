"""Signs of life of a task that writes, so that its transaction outlives the driver's silence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from tidelock.client import JoinedTransaction, join
from tidelock.client.leases import Leases


@dataclass(frozen=True)
class _Kept:
    """The transaction as a lease of the client's heartbeat."""

    joined: JoinedTransaction
    holder: str
    lease_s: float

    def renew(self, timeout_s: float) -> None:
        self.joined.heartbeat(timeout_s)


@contextlib.contextmanager
def kept_alive(url: str, token: str, lease_s: float) -> Iterator[None]:
    """Keep a transaction alive for the time of a block.

    That it has ended is not told here: whatever is sent to it is refused.

    Args:
        url: Of its home.
        token: With the right "heartbeat".
        lease_s: Length of its lease.
    """
    leases = Leases()
    with join(url, token) as joined:
        lease = _Kept(joined, url, lease_s)
        leases.add(lease)
        try:
            yield
        finally:
            leases.remove(lease)
