"""The replica agent: the processes beside each replica that own its store, its transactions and its HTTP.

One process owns the protocol, the catalog and the only ZooKeeper client; reader workers serve immutable parts
and keep no state; SQL of users runs in limited worker processes. The agent promises that it serves a snapshot
exactly or refuses it, that a rolled-back transaction leaves nothing behind, and that it stops serving when it
cannot prove its state (rules processes, readers; I5, I6, I13 and I15). It does not promise to be
reachable: clients fail over.
"""
