"""SQL processes: users' statements, compaction and row changes in DuckDB, without file or network access.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/workers, replica_agent/tables, replica_agent/footers, replica_agent/storage,
    replica_agent/system_tables.
Entry points: `SqlPool` (in the agent), `worker` (the process), the statements of `mutation` and `request`.
On failure: a statement that needs too much memory or time is ended and refused; its process is replaced.
"""
