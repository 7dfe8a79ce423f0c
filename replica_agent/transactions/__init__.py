"""Open transactions: their states, leases, staged parts and staging folders.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage.
Entry points: `Transactions` (the registry), `StagingArea`, `AdoptedMerges`.
On failure: a restart aborts every open transaction; a lost lease ends one with the reason.
"""
