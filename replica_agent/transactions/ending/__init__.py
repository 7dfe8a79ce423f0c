"""The end of a transaction: validation, durable copies, group commit, answer, rollback, labels, outcomes.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage, replica_agent/sql, replica_agent/transactions,
    replica_agent/transactions/statements.
Entry points: `Commits`, `TransactionCloser`, `CopyMaker`, `GroupCommitGate`, `OutcomeRetention`.
On failure: a commit ends committed, refused, or unknown until the log tells; it never guesses.
"""
