"""Reader processes: serve listings and verified bytes of parts over WebHDFS and plain HTTP.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/workers, replica_agent/tables, replica_agent/storage, replica_agent/footers.
Entry points: `ReaderPool` (in the agent), `worker` (the process).
On failure: a worker that dies is replaced; no row is ever missing silently: an answer is exact or an
    error.

A worker holds a read-only catalog connection and the listening socket, and no other state: it may be killed
at any moment and is started again (rule processes; beside one Spark job on the same event loop a tiny request
took 10-44 ms). The pool in the agent and the workers exchange the structs of `messages`.

Promises: every byte of a part that leaves a worker was compared with the digest of its block, every name is
resolved at exactly the requested CSN, and no answer can make Spark return fewer rows without an error (rule
readers; ADR 0004). Not promised: that this replica ever reaches a CSN above its snapshot CSN.
"""

from __future__ import annotations
