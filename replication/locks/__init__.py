"""Removal locks in ZooKeeper: taken before a part is removed, kept until the log's tail has passed.

May import: csnlog, csnlog/core, replication/core.
Entry points: `Locks`.
On failure: the first locker wins, the second gets SerializationConflictError; a lost answer is decided by
    the log.
"""
