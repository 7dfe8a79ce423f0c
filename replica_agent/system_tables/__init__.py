"""System tables: what a replica knows of its tables, parts, transactions and cluster, as tables for SQL.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage.
Entry points: `registry.SYSTEM_TABLES`, `definition.SystemTable`, `live.collected`. A new table is one more
    definition in the list of the registry; its page in the documentation is made from it.
On failure: a row that cannot be read raises the error of the catalog or of ZooKeeper; no row is left out.
"""
