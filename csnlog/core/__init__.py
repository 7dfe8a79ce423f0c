"""The pure core of the CSN log: ids, records and their bytes, group commit, following, fences, visibility.

May import: nothing of ours.
Entry points: `Committer` and `Follower` (each a `Machine`), `visible` (visibility), `codec` (bytes), `Store`
    (what they need of ZooKeeper).
On failure: a machine whose state no correct history leads to raises InvariantError with its last steps;
    bytes it cannot read are CorruptError.
"""
