"""Readers of a simulated ZooKeeper, for those who judge a run."""

from __future__ import annotations

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId
from tidelock.csnlog.testing.memory_tree import Znode, ZnodeTree


def bound(znodes: ZnodeTree, path: str) -> Csn:
    """The CSN in a znode, like the tail; CSN_NONE if it is not there."""
    znode = znodes.get(path)
    return CSN_NONE if znode is None else codec.decode_csn(znode.data)


def state_of(znodes: ZnodeTree, replica: ReplicaId) -> str:
    """The state in a replica's session; "" if it is not registered."""
    znode = znodes.get(tree.session(replica))
    return "" if znode is None else codec.decode_session(znode.data).state


def children(znode: Znode | None) -> list[str]:
    """The names below a znode, if it is there, in their order."""
    return sorted(znode.children) if znode is not None else []
