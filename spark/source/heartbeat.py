"""Heartbeats of a writing task, which keep its transaction alive while the driver sends no request."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from tidelock.client import JoinedTransaction, join
from tidelock.client.agents.leases import Leases
from tidelock.errors import TidelockError

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _TransactionLease:
    """The lease of a joined transaction, for the client's `Leases`."""

    joined: JoinedTransaction
    holder: str
    lease_s: float
    warned: bool = False

    def renew(self, timeout_s: float) -> None:
        try:
            self.joined.heartbeat(timeout_s)
        except TidelockError as error:
            if not self.warned:
                self.warned = True
                tid, home = self.joined.tid, self.holder
                _log.warning("the lease of %s was not renewed at %s: %s", tid, home, error.message)
            raise


@contextlib.contextmanager
def kept_alive(url: str, token: str, lease_s: float, *, at_once: bool) -> Iterator[None]:
    """Keep a transaction alive for the duration of a block.

    The block gets no error if the transaction ends: the home refuses the next request of the block.

    Args:
        url: URL of the transaction's home.
        token: A token with the right "heartbeat".
        lease_s: Length of the transaction's lease, in seconds.
        at_once: Renew the lease at the beginning, not only after a third of it. Needed if part of the lease
            may have passed already, since each of many successive blocks may be shorter than that third.
    """
    leases = Leases()
    with join(url, token) as joined:
        lease = _TransactionLease(joined, url, lease_s)
        leases.add(lease, at_once=at_once)
        try:
            yield
        finally:
            leases.remove(lease)
