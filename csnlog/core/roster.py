"""The roster: how many copies a commit needs, and whose copies count. Pure.

It is the data of the znode ``replicas``. The data version of that znode is raised with each change that can
take a copy away: of ``copies``, of the disk or rack of a replica, of the replicas that are draining, struck
or removed. Every commit checks the version at which its copies were counted (rule copies), so no commit
counts a copy that such a change has taken away before it.
"""

from __future__ import annotations

from typing import Final

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import ReplicaId
from tidelock.csnlog.core.model import (
    FENCED,
    REMOVED,
    SERVING,
    STOPPED,
    STRUCK,
    ClusterState,
    MemberState,
    Roster,
    SessionState,
)
from tidelock.csnlog.core.store import Node, SetData

#: States of a session in which a replica is no member any more, or has to clone before it is one again.
LEFT_OUT: Final = frozenset({STRUCK, REMOVED})
#: States of a session in which the copies on the disk of a replica count, whether it runs or not.
COUNTED: Final = frozenset({SERVING, STOPPED, FENCED})


def roster_of(node: Node | None, cluster: ClusterState) -> Roster:
    """Return the roster of a cluster; where no operator has changed it, that of the bootstrap.

    Args:
        node: The znode ``replicas``; None if it was not read yet.
        cluster: The settings of the bootstrap.

    Raises:
        CorruptError, UpgradeNeededError: The bytes cannot be read.
    """
    return codec.decode_roster(node.data) if node is not None and node.data else Roster(cluster.copies)


def raised(node: Node, roster: Roster | None = None) -> SetData:
    """Return the write that raises the version of the roster, by compare-and-set; None keeps the data."""
    return SetData(tree.REPLICAS, node.data if roster is None else codec.encode_roster(roster), node.version)


def takes_copies(before: SessionState, after: SessionState) -> bool:
    """Return whether a change of a session can take copies away, or bring a replica back."""
    counted = (before.state in COUNTED, after.state in COUNTED)
    return before.disk != after.disk or counted != (True, True)


def group_of(replica: ReplicaId, roster: Roster, member: MemberState) -> str:
    """Return the group in which a replica's copies count as one: its rack if racks count, or itself."""
    return f"rack {member.rack}" if roster.racks and member.rack else replica
