"""The store on a real ZooKeeper ensemble, and the only use of kazoo.

May import: csnlog/core.
Entry points: `ZkStore`, `ConnectString`.
On failure: every call ends Ok, Refused (certainly not applied) or Unknown (maybe applied); nothing is
    retried here.
"""
