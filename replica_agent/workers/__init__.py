"""Worker processes: started with a socketpair, configured over it, and never left behind.

May import: nothing of ours.
Entry points: `WorkerProcess`, `Program`, `keep_running` (in the agent), `begin`, `requests` (in the process).
On failure: a worker that does not start is UnavailableError; the death of a running one is WorkerDiedError
    at its next frame, and the room that sent the request decides what that means for it.

Readers, SQL processes and the examiner of files run on this (docs/adr/0016-one-way-to-run-workers.md).
Promises:

* A worker ends with its agent, however that ends, whatever the worker is doing, and also while it is frozen.
* What the agent tells a worker travels over the socketpair. The command line and the environment, which
  other processes of the machine can read, hold no setting of the agent.
* A start that fails or is cancelled leaves no process behind.
"""

from __future__ import annotations
