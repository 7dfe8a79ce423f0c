"""The other replicas: their pushes, their membership, and their undecided transactions.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/tables, replica_agent/storage.
Entry points: `Receiver`, `Membership`, `Homes`, `CatalogPort`, the resolver of undecided transactions.
On failure: a push is confirmed only when file and row are durable; a peer that does not answer changes
    nothing here.
"""
