"""The lifecycle of an agent: wiring, joining the cluster, background tasks, readiness and shutdown.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage, replica_agent/sql, replica_agent/transactions,
    replica_agent/transactions/statements, replication/locks, replica_agent/audit, replica_agent/cloning,
    replica_agent/compaction, replica_agent/landing, replica_agent/readers, replica_agent/replicas,
    replica_agent/scrubbing, replica_agent/snapshots, replica_agent/system_tables,
    replica_agent/transactions/ending, replica_agent/transactions/outcomes, replica_agent/uploads,
    csnlog/zookeeper, replica_agent/services, replica_agent/api.
Entry points: `Agent`.
On failure: an agent that cannot prove its state stops serving; a fenced agent starts again as a fresh
    process.
"""
