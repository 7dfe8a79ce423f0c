"""The outcome resolver: pure rules that decide what became of a transaction, and their driver.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage, replica_agent/transactions.
Entry points: `OutcomeResolver`, the policies `CLIENT`, `LOCK`, `AUDIT`, `AUDIT_UNDECIDED`, `UNDECIDED`.
On failure: a read that fails raises UnavailableError and decides nothing; a home that does not answer
    leaves its transaction undecided until its fence is raised.
"""
