"""HTTP routes for clients, jobs, peers and operators: each group of routes sees one service.

May import: replication, replication/core, csnlog/core, replica_agent/config, replica_agent/tables,
    replica_agent/storage, replica_agent/readers, replica_agent/sql, replica_agent/snapshots,
    replica_agent/transactions, replica_agent/transactions/statements, replica_agent/transactions/ending,
    replica_agent/uploads, replica_agent/services.
Entry points: `application`.
On failure: every error is JSON with its name, message and details; a request that ends early is cancelled.
"""
