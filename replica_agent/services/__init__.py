"""The services for clients, jobs, peers and operators, each with its check of the agent's state.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage, replica_agent/sql, replica_agent/transactions,
    replica_agent/transactions/statements, replication/locks, replica_agent/audit, replica_agent/cloning,
    replica_agent/compaction, replica_agent/landing, replica_agent/readers, replica_agent/replicas,
    replica_agent/scrubbing, replica_agent/snapshots, replica_agent/system_tables,
    replica_agent/transactions/ending, replica_agent/transactions/outcomes, replica_agent/uploads.
Entry points: `Services`; a route sees exactly one of them.
On failure: a service refuses a request that the state of the agent does not allow, and names the state.
"""
