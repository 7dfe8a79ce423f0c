"""The replica agent: the processes of one replica, which own its store, transactions and HTTP servers.

One process owns the protocol, the catalog and the only ZooKeeper client; reader workers serve immutable parts
and keep no state; users' SQL runs in worker processes with limited resources. The agent promises that it
serves a snapshot exactly or refuses it, that a rolled-back transaction leaves nothing behind, and that it
stops serving when it cannot prove its state (rules processes, readers; I5, I6, I13 and I15). It does not
promise to be reachable: clients fail over.
"""
