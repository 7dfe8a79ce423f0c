"""The steps of an operator until a node serves again."""

from __future__ import annotations

from chaos.watching.waiting import STEP_TIMEOUT_S, comes_true
from chaos.world import World


def there(world: World, name: str) -> bool:
    """Return whether a node is part of the cluster; a member may have been removed while it was hurt."""
    return name in {*world.cluster.replicas, *world.cluster.zookeepers}


def serve_again(world: World, *names: str) -> None:
    """Start nodes as often as they end, until all serve clients; a member that was removed is left out.

    A node may have died of another fault, and a start may fail for that reason, as without ZooKeeper.

    Raises:
        UnavailableError: One does not serve in time; the message has the end of its log.
    """
    waiting = [*names]

    def all_serve() -> bool:
        # Each is started at once: a server of ZooKeeper needs another one to serve.
        waiting[:] = [name for name in waiting if not _well(world, name)]
        return not waiting

    if not comes_true(all_serve, STEP_TIMEOUT_S):
        world.cluster.node(waiting[0]).wait_ready(0.0)


def _well(world: World, name: str) -> bool:
    """Start a node if it does not run; return whether it serves, or is no part of the cluster any more."""
    if not there(world, name):
        return True
    node = world.cluster.node(name)
    if not node.running:
        node.start(wait=False)
    return node.ready()
