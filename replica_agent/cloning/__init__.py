"""Clones: a peer's catalog takes the place of the own one, then the parts that it names are fetched.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage.
Entry points: `ManifestSource` (the peer that sends), `Joiner` (the replica that clones), `MissingParts` (its
    parts).
On failure: the catalog is replaced in one transaction or not at all; a clone that ends in its middle begins
    again, and keeps the parts that it has.
"""
