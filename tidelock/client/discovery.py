"""Discovery of the addresses of agents from a ZooKeeper address.

This is the only module of the client that imports modules of the agents, and only for an address of the form
zk://. A single module of the product imports kazoo, and it belongs to the agents
(docs/adr/0003-client-discovery.md).
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
    addresses: list[str] = importlib.import_module("tidelock.csnlog.cluster.discovery").agents(
        connect, timeout_s=timeout_s
    )
    return addresses
