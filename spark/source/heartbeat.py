"""Signs of life of a task that writes, so that its transaction outlives the driver's silence."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from tidelock.client import JoinedTransaction, join
from tidelock.client.leases import Leases
from tidelock.errors import TidelockError

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Kept:
    """The transaction as a lease of the client's heartbeat."""

    joined: JoinedTransaction
    holder: str
    lease_s: float
    told: bool = False

    def renew(self, timeout_s: float) -> None:
        try:
            self.joined.heartbeat(timeout_s)
        except TidelockError as error:
            if not self.told:
                self.told = True
                tid, home = self.joined.tid, self.holder
                _log.warning("the lease of %s was not renewed at %s: %s", tid, home, error.message)
            raise


@contextlib.contextmanager
def kept_alive(url: str, token: str, lease_s: float, *, at_once: bool) -> Iterator[None]:
    """Keep a transaction alive for the time of a block.

    That it has ended is not told here: whatever is sent to it is refused.

    Args:
        url: Of its home.
        token: With the right "heartbeat".
        lease_s: Length of its lease.
        at_once: Begin with a renewal, and not after a third of the lease: some of that is over already, and
            many blocks may follow each other that are shorter.
    """
    leases = Leases()
    with join(url, token) as joined:
        lease = _Kept(joined, url, lease_s)
        leases.add(lease, at_once=at_once)
        try:
            yield
        finally:
            leases.remove(lease)
