"""The audit: compares log, catalog, files and ZooKeeper, and reports contradictions.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/storage, replica_agent/tables.
Entry points: `Auditor`.
On failure: it only reads; a difference that may still disappear is checked again before it becomes a finding.

**Work in flight is not reported.** An audit runs beside commits, rollbacks, fetches and collection, and reads
files, catalog and ZooKeeper one after the other. So

* the range of the comparison is fixed first: the snapshot CSN. Everything up to it came into the catalog in
  one transaction, and on the disk before that; everything above it is not judged;
* of the two sides of a comparison the audit reads first the side that changes last, if one side does;
* and a difference counts only if every run of a check has a difference about the same thing, from the first
  run until ``audit_settle_s`` have passed. That is longer than the clean-up after a transaction may take (by
  the check of undecided transactions, and the sweep of locks). A replica without a difference is checked
  once.

For files this suffices, for these reasons. A name is given once, and a row of ``files`` or ``undo`` exists
before its file and is deleted after it. A run reads the catalog, then the disk. A file that two runs find
without a row existed while the second run read the catalog; a row that two runs find without its file
existed while the first run read the disk.

Modules: ``rules`` (comparisons of the catalog with disk and log, as SQL), ``judgements`` (of locks, labels,
pins, tables, and the results of checks; pure), ``scratch`` (the facts, in a separate database),
``records`` (reads the log into it), ``znodes`` (reads ZooKeeper), ``checks`` (each reads and compares),
``deep`` (reads all bytes), ``digests`` (for comparisons of replicas), ``auditor`` (the whole audit).
"""
