"""The parts that look for rot: of bytes on the disk, and of the catalog."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from tidelock.replica_agent.lifecycle.means import Means
from tidelock.replica_agent.lifecycle.replication_parts import ReplicationParts
from tidelock.replica_agent.scrubbing.comparison import StateComparison
from tidelock.replica_agent.scrubbing.scrubber import Scrubber

#: How long a peer may need for its digest, in seconds: it reads all rows of its catalog.
_DIGEST_S: Final = 60.0


def make_scrubber(means: Means, replication: ReplicationParts) -> Scrubber:
    """Make the scrubber; the stack of ``means`` closes its file."""
    scrubber = Scrubber(
        catalog=means.local.catalog,
        settings=means.settings,
        metrics=means.metrics.scrub,
        damaged=means.events.corrupt,
        log_ms=replication.retention.log_ms,
        monotonic=time.monotonic,
    )
    means.stack.callback(scrubber.close)
    return scrubber


def make_comparison(means: Means, replication: ReplicationParts) -> StateComparison:
    """Make the comparison with the other replicas."""
    membership = replication.membership

    def members() -> tuple[int, Sequence[str]]:
        others = [peer.api for peer in membership.peers() if peer.api and peer.alive and not peer.struck]
        return len(membership.view), others

    return StateComparison(
        replica=means.replica,
        settings=means.settings,
        reader=means.reader,
        members=members,
        ask=partial(replication.client.digest, timeout_s=_DIGEST_S),
        outvoted=means.events.outvoted,
        metrics=means.metrics.scrub,
        log_ms=replication.retention.log_ms,
        monotonic=time.monotonic,
    )
