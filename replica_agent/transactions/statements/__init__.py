"""Statements inside a transaction: insert, removal, row change, unique keys, derived tables.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage, replica_agent/sql, replica_agent/transactions,
    replication/locks.
Entry points: `Inserts`, `Removals`, `Mutations`.
On failure: a refused statement leaves the transaction to be rolled back; what it staged is removed.
"""
