"""Writes through the file system: uploaded Parquet files of jobs become parts of a transaction.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage, replica_agent/sql, replica_agent/transactions,
    replica_agent/transactions/statements, replica_agent/workers, replica_agent/replicas.
Entry points: `Uploads`, `UploadRedirector`, `TokenIssuer`, `FileExaminer`.
On failure: a file that cannot be a part of its table is refused with the reason; no file of an unsealed job
    becomes a part.
"""
