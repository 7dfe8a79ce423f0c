"""The pure core of the CSN log: ids, records and their bytes, group commit, following, fences, visibility.

May import: nothing of ours.
Entry points: `Committer` and `Follower` (machines), `visible` (visibility), `codec` (bytes), `Store` (what
    they need of ZooKeeper).
On failure: a machine that meets a state no correct history leads to raises AssertionError; bytes it cannot
    read are CorruptError.
"""
