"""What became of a transaction: the one place that decides it, and the one that asks for what it needs.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage, replica_agent/transactions.
Entry points: `OutcomeResolver`, the policies `CLIENT`, `LOCK`, `AUDIT`, `AUDIT_UNDECIDED`, `UNDECIDED`.
On failure: what cannot be read raises UnavailableError and decides nothing; a home that does not answer
    leaves its transaction undecided until its fence is raised.
"""
