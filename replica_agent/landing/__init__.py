"""Landing tables: rows count as written when they are durable, and are committed afterwards.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage, replica_agent/sql, replica_agent/transactions,
    replica_agent/transactions/statements, replica_agent/transactions/ending.
Entry points: `Landings` takes rows at their home, `Rescue` commits those of a boot that has ended.
On failure: acknowledged rows stay on the disks of their holders until one of these has committed them.
"""
