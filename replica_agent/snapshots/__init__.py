"""Snapshots: pins, the horizon, the change feed, and the removal of what no snapshot needs.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage, replica_agent/readers, replica_agent/sql.
Entry points: `Snapshots`, `ImplicitPins`, `ChangeFeed`, `Collection`.
On failure: a CSN that cannot be promised is refused with the oldest one that can; nothing above the horizon
    is deleted.
"""
