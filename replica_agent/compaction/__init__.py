"""Compaction: merges small parts in transactions that change no rows.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage, replica_agent/sql, replica_agent/transactions,
    replica_agent/transactions/statements, replica_agent/transactions/ending.
Entry points: `Compactor`, `plan`.
On failure: it yields to every user statement; a merge that fails is rolled back and planned again later.
"""
