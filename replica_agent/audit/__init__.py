"""The audit: compares log, catalog, files and ZooKeeper, and reports contradictions.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config.
Entry points: `Auditor`.
On failure: it only reads; a difference that may still disappear is checked again before it becomes a finding.

**Work in flight is not reported.** An audit runs beside commits, rollbacks, fetches and collection, and reads
files, catalog and ZooKeeper one after the other. So

* the range of the comparison is fixed first: the snapshot CSN. Everything up to it came into the catalog in
  one transaction, and on the disk before that; everything above it is not judged;
* of the two sides of a comparison the audit reads first the side that changes last, if one side does;
* and a difference counts only if every look of a series has a difference about the same thing, from the first
  look until ``audit_settle_s`` have passed. That is longer than the clean-up after a transaction may take (by
  the check of undecided transactions, and the sweep of locks). A replica without a difference is looked at
  once.

For files this suffices, for these reasons. A name is given once, and a row of ``files`` or ``undo`` exists
before its file and is deleted after it. A look reads the catalog, then the disk. A file that two looks find
without a row existed while the second look read the catalog; a row that two looks find without its file
existed while the first look read the disk.

Modules: ``findings`` (the results of looks), ``rules`` (comparisons of the catalog with disk and log, as
SQL), ``judgements`` (of locks, labels, pins, tables; pure), ``scratch`` (the facts, in a separate database),
``records`` (reads the log into it), ``znodes`` (reads ZooKeeper), ``checks`` (each reads and compares),
``deep`` (reads all bytes), ``digests`` (for comparisons of replicas), ``auditor`` (the whole audit).
"""
