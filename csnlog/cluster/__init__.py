"""The cluster beside its log: creation, registration, start checks, members, progress and addresses.

May import: csnlog/core, csnlog/zookeeper.
Entry points: `bootstrap`, `register`, `Members`, `replica_progress`, `discovery`, `refusals`.
On failure: an ensemble that is not the expected one, or older than this replica knows it, is refused at the
    start.
"""
