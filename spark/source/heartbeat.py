"""Signs of life of a task that writes, so that its transaction outlives the driver's silence."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tidelock.client import join
from tidelock.errors import TidelockError, UnavailableError

#: The lease is renewed when this part of it has passed, and tried again after a fifth of that.
RENEWALS_PER_LEASE = 4
RETRIES_PER_RENEWAL = 5


@contextlib.contextmanager
def kept_alive(url: str, token: str, lease_s: float) -> Iterator[None]:
    """Keep a transaction alive for the time of a block.

    That it has ended is not told here: whatever is sent to it is refused.

    Args:
        url: Of its home.
        token: With the right "heartbeat".
        lease_s: Length of its lease.
    """
    over = threading.Event()
    thread = threading.Thread(target=_beat, args=(url, token, lease_s, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _beat(url: str, token: str, lease_s: float, over: threading.Event) -> None:
    pause_s = renewal_s = lease_s / RENEWALS_PER_LEASE
    with join(url, token) as joined:
        while not over.wait(pause_s):
            try:
                joined.heartbeat(timeout_s=renewal_s)
                pause_s = renewal_s
            except UnavailableError:
                pause_s = renewal_s / RETRIES_PER_RENEWAL
            except TidelockError:
                return
