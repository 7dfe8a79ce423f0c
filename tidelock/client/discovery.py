"""From a ZooKeeper address to the addresses of agents.

The one place outside the agents that imports their inside, and only when an address of the form zk:// is
given: one module imports kazoo, and it is theirs (docs/adr/0003-client-discovery.md).
"""

from __future__ import annotations

import importlib


def agents(connect: str, *, timeout_s: float) -> list[str]:
    """Return the API addresses of all replicas of a cluster, those that are alive first.

    Raises:
        ConfigError: `connect` is not of the form `host:port[,host:port...]/root`, or no cluster is below that
            root.
        UnavailableError: ZooKeeper does not answer, or no replica has an address yet.
    """
    found: list[str] = importlib.import_module("tidelock.csnlog.cluster.discovery").agents(
        connect, timeout_s=timeout_s
    )
    return found
