"""The audit: compares log, catalog, files and ZooKeeper, and reports what contradicts.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config.
Entry points: `Auditor`.
On failure: it only reads; what may still change is looked at again before it becomes a finding.

**What is in flight is not reported.** An audit runs beside commits, rollbacks, fetches and collection, and
reads files, catalog and ZooKeeper one after the other. So

* what is compared is fixed first: the snapshot CSN. Everything up to it came into the catalog in one
  transaction, and on the disk before that; what is above it is not judged;
* of the two sides of a comparison the one is read first that changes last, where there is one;
* and a difference counts only if it is about the same thing in every look of a series, from the first until
  ``audit_settle_s`` have passed. That is longer than what cleans up behind a transaction may take (the
  janitor of undecided transactions, the sweep of locks). A replica without a difference is looked at once.

That this suffices for files: a name is given once, and a row of ``files`` or ``undo`` stands before its file
and goes after it. A look reads the catalog, then the disk. A file that two looks find without row lay there
while the second look read the catalog; a row that two looks find without its file stood while the first look
read the disk.

Modules: ``findings`` (what is said), ``rules`` (comparisons of the catalog with disk and log, as SQL),
``judgements`` (of locks, labels, pins, tables; pure), ``scratch`` (the facts, in a database of its own),
``records`` (reads the log into it), ``znodes`` (reads ZooKeeper), ``checks`` (each reads and compares),
``deep`` (reads all bytes), ``digests`` (what replicas are compared by), ``auditor`` (the whole).
"""
