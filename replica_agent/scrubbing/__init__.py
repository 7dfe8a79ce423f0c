"""Finds rot before a reader does: wrong bytes on the disk, and a catalog that contradicts the others.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/storage.
Entry points: `Scrubber`, `StateComparison`.
On failure: a part that is wrong is fetched again; a replica that a majority contradicts stops and clones;
what cannot be read or asked now is tried again.
"""
