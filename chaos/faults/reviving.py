"""What an operator does until a node serves again."""

from __future__ import annotations

from chaos.faults.waiting import STEP_TIMEOUT_S, until
from chaos.world import World
from tidelock.errors import TidelockError
from tidelock.testing import Node


def there(world: World, name: str) -> bool:
    """Return whether a node is part of the cluster; a member may have been removed while it was hurt."""
    return name in {*world.cluster.replicas, *world.cluster.zookeepers}


def serve_again(world: World, name: str, *, timeout_s: float = STEP_TIMEOUT_S) -> None:
    """Start a node as often as it ends, until it serves clients; nothing for a member that was removed.

    It may have died of another fault, and a start may fail for that reason, as without ZooKeeper.

    Raises:
        UnavailableError: It does not serve in this time; the message has the end of its log.
    """
    if not there(world, name):
        return
    node = world.cluster.node(name)
    try:
        until(
            lambda: not there(world, name) or _serves(node), what=f"{name} serves again", timeout_s=timeout_s
        )
    except TidelockError:
        node.wait_ready(0.0)


def _serves(node: Node) -> bool:
    """Start a node if it does not run; return whether it serves."""
    if not node.running:
        node.start(wait=False)
    return node.ready()
