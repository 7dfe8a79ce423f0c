"""Reader processes: serve listings and verified bytes of parts over WebHDFS and plain HTTP.

May import: csnlog, csnlog/cluster, csnlog/core, replication, replication/core, replica_agent/config,
    replica_agent/workers, replica_agent/storage.
Entry points: `ReaderPool` (in the agent), `worker` (the process).
On failure: a worker that dies is replaced; rows are never missing in silence: an answer is exact or an
    error.

A worker holds a read-only catalog connection and the listening socket, and no state that anybody would miss:
it may be killed at any moment and is started again (rule processes; beside one Spark job on the same event
loop a tiny request took 10-44 ms). The pool in the agent and the workers exchange the structs of `messages`.

What is promised: every byte of a part that leaves a worker was compared with the digest of its block, every
name is answered for exactly the CSN that was asked for, and no answer can make Spark return fewer rows
without an error (rule readers; ADR 0004). What is not: that a CSN above the
snapshot CSN is ever reached here.
"""

from __future__ import annotations
