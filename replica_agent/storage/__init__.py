"""The replica's own store: the catalog (SQLite) and the part files that it names.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/footers.
Entry points: `Catalog` (writes, by jobs of `catalog_writes`), `CatalogReader` (reads), `Stager` (packs),
    `PartMaker` (Parquet).
On failure: an undo row is durable before the first byte of a file, so a crash leaves nothing; a damaged
    catalog stops the agent.
"""
