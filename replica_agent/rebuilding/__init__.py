"""The rebuild of the tree in ZooKeeper out of the catalogs of stopped replicas, by order of an operator.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    csnlog/zookeeper, replica_agent/storage.
Entry points: `python -m tidelock.replica_agent.rebuilding.main`.
On failure: the catalogs are only read; a tree that is not whole has no `cluster`, so no agent starts on it,
    and the command is run again.
"""
