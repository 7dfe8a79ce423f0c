"""HTTP routes for clients, peers and operators, and the operations behind them.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage, replica_agent/sql, replica_agent/transactions,
    replica_agent/transactions/statements, replication/locks, replica_agent/audit, replica_agent/compaction,
    replica_agent/readers, replica_agent/replicas, replica_agent/snapshots,
    replica_agent/transactions/ending, replica_agent/transactions/outcomes, replica_agent/uploads.
Entry points: `application`.
On failure: every error is JSON with its name, message and details; a request that ends early is cancelled.
"""
